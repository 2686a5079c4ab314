"""What a model counts in a batch, for the figures of an evaluation.

All are sums, float32 scalars, in which rows and places without weight do not count. Added up over
batches they give the figures of the whole data, on any mesh; `t2tp.problems.metrics` makes them.
"""

from t2tp.metrics.bleu import bleu_sums
from t2tp.metrics.sums import (
    correct_in_top_k,
    positive_sums,
    sequence_sums,
    symbol_sums,
)

__all__ = ["bleu_sums", "correct_in_top_k", "positive_sums", "sequence_sums", "symbol_sums"]
