"""The best continuations of a beam's sequences, on a vocabulary that may be split."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.decoding.sampling import top_tokens
from t2tp.decoding.vocab_slice import VocabSlice, as_floats, as_ids, log_probs_of
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation


class Candidates(NamedTuple):
    """Continuations of sequences, the most probable first: [batch, candidate].

    Attributes:
      log_probs: float32, log-probabilities of the continued sequences.
      parents: int32, the beam entry that each candidate extends.
      tokens: int32, the token that each candidate adds.
    """

    log_probs: Any
    parents: Any
    tokens: Any


def top_candidates(
    logits: mtf.Tensor,
    log_probs: mtf.Tensor,
    may_end: mtf.Tensor,
    vocab_size: int,
    end_ids: Sequence[int],
    count: int,
) -> Candidates:
    """Returns the most probable extensions of sequences by one token, the most probable first.

    Args:
      logits: float [batch, beam, vocab].
      log_probs: float32 [batch, beam], of the sequences; -infinity: there is no sequence.
      may_end: booleans [batch], whether an end token may be chosen.
      vocab_size: number of tokens; ids from this number on are padding and never chosen.
      end_ids: ids of the end tokens.
      count: number of candidates.
    """
    dim = mtf.Dimension("candidate", count)
    operation = CandidatesOperation(logits, log_probs, may_end, vocab_size, end_ids, dim)
    return Candidates(*operation.outputs)


class CandidatesOperation(Operation):
    """Finds the best continuations on a split vocabulary; see `top_candidates`."""

    accepts_padding = True
    dropped_dims = "kept"

    def __init__(
        self,
        logits: mtf.Tensor,
        log_probs: mtf.Tensor,
        may_end: mtf.Tensor,
        vocab_size: int,
        end_ids: Sequence[int],
        dim: mtf.Dimension,
    ) -> None:
        super().__init__([logits, log_probs, may_end], name="candidates")
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._dim = dim
        shape = mtf.Shape([*logits.shape.dims[:-2], dim])
        dtypes = (tf.float32, tf.int32, tf.int32)
        self._outputs = [mtf.Tensor(self, shape, dtype) for dtype in dtypes]

    def lower(self, lowering: Lowering) -> None:
        """Finds the best candidates of each vocabulary slice, then the best of these."""
        logits, log_probs, may_end = self.inputs
        part = VocabSlice(lowering, logits)
        allowed = part.choosable(self._vocab_size, lowering.slice(may_end)[:, None], self._end_ids)
        values, ids = top_tokens(part, allowed, self._dim.size)
        count = values.shape[-1]
        gathered = part.gather(tf.concat([values, as_floats(ids), part.normalizer_parts()], -1))
        batch = gathered.shape[0]
        here = log_probs_of(gathered[..., :count], gathered[..., 2 * count :])
        sums = lowering.slice(log_probs)[..., None, None] + here  # [batch, beam, parts, count]
        best, indices = tf.math.top_k(tf.reshape(sums, [batch, -1]), self._dim.size)
        tokens = tf.reshape(as_ids(gathered[..., count : 2 * count]), [batch, -1])
        lowering.set_slice(self.outputs[0], best)
        lowering.set_slice(self.outputs[1], indices // (part.parts * count))
        lowering.set_slice(self.outputs[2], tf.gather(tokens, indices, batch_dims=1))
