"""Sums over a batch from which the metrics of an evaluation are computed.

All are float32 scalars that ignore rows and positions of weight 0. Added over batches they give
the metrics of the whole split on any mesh; `t2tp.problems.metrics` divides them.
"""

from t2tp.metrics.sums import correct_in_top_k, positive_sums, sequence_sums, token_sums

__all__ = ["correct_in_top_k", "positive_sums", "sequence_sums", "token_sums"]
