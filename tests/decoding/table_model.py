"""A model whose next token depends on two tokens, so that tests can try every sequence."""

import itertools

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.models.autoregressive import AutoregressiveModel

EOS = 1
TOKENS, VOCAB = 5, 8  # Tokens 5 to 7 are padding of the vocabulary.
LOGITS = 2 * np.random.default_rng(0).normal(size=(VOCAB, VOCAB, VOCAB)).astype(np.float32)
LOGITS[..., TOKENS:] += 3  # Padding must not be chosen however probable it is.
LOG_PROBS = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))


class TableModel(AutoregressiveModel):
    """A model that reads its logits from a table [token before the last, last token, vocab]."""

    def __init__(self, logits: np.ndarray = LOGITS, tokens: int = TOKENS) -> None:
        super().__init__(HParams(max_length=1 << 20), {"targets": tokens})
        self.logits = logits

    def build_loss(self, mesh, features, training):
        raise NotImplementedError

    def build_prefill(self, mesh, features, length):
        """Stores the tokens by position."""
        prefix = mtf.rename_dimension(features["prefix"], "prefix_length", "length")
        missing = length.size - prefix.shape.dims[-1].size
        return {"history": mtf.pad(prefix, [0, missing], "length")}

    def build_decode_step(self, mesh, tokens, positions, state):
        history = state["history"]
        places = mtf.range(mesh, history.shape.dims[-1], tf.int32)
        is_last = mtf.equal(places, positions - 1)
        history = mtf.where(is_last, tokens, history, output_shape=history.shape)
        is_before = mtf.cast(mtf.equal(places, positions - 2), tf.int32)
        before = mtf.reduce_sum(
            mtf.multiply(history, is_before, output_shape=history.shape),
            reduced_dim=history.shape.dims[-1],
        )
        last = tokens * mtf.cast(mtf.greater(positions, 0), tf.int32)
        sizes = zip(("before", "last", "vocab"), self.logits.shape, strict=True)
        dims = [mtf.Dimension(*each) for each in sizes]
        table = mtf.import_tf_tensor(mesh, self.logits, mtf.Shape(dims))
        row = mtf.gather(mtf.gather(table, before, dims[0]), last, dims[1])
        return row, {"history": history}


def log_prob(tokens, prefix=(), log_probs=LOG_PROBS):
    """Returns the log-probability of tokens after a prefix."""
    total, history = 0.0, [0, 0, *prefix]
    for token in tokens:
        total += log_probs[history[-2], history[-1], token]
        history.append(token)
    return total


def ended_sequences(limit, alpha, prefix=(), least=0, ends=(EOS,)):
    """Returns score, log-probability and tokens of all sequences that end within `limit` tokens."""
    found = []
    others = [token for token in range(TOKENS) if token not in ends]
    for size in range(least, limit):
        for body in itertools.product(others, repeat=size):
            for end in ends:
                total = log_prob([*body, end], prefix)
                found.append((total / ((5 + size + 1) / 6) ** alpha, total, list(body)))
    return sorted(found, reverse=True)
