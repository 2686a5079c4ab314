"""Sums over a batch from which the metrics of an evaluation are computed.

The sums are float32 scalars that ignore rows and positions of weight 0. They are added up over
batches, and a problem divides one total by another. So a metric is computed over the whole split,
on any mesh.
"""

from t2tp.metrics.sums import correct_in_top_k, positive_sums, sequence_sums, token_sums

__all__ = ["correct_in_top_k", "positive_sums", "sequence_sums", "token_sums"]
