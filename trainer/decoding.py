"""Continues a text, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.mesh.program import Feature
from t2tp.problems.vocabulary import END_OF_DOCUMENT
from t2tp.trainer.estimator import Estimator


def prediction_features(layout: Layout, hparams: HParams) -> dict[str, Feature]:
    """What `Model.next_token_logits` is fed.

    Args:
      layout: one that splits `batch` needs a row for each part.
      hparams: `max_length` is how much the model sees.
    """
    axis = layout.axis_of("batch")
    batch = mtf.Dimension("batch", axis.size if axis else 1)
    length = mtf.Dimension("length", hparams.max_length)
    return {
        "targets": Feature(mtf.Shape([batch, length]), tf.int32),
        "position": Feature(mtf.Shape([]), tf.int32),
    }


def sample(
    estimator: Estimator,
    hparams: HParams,
    prompt: Sequence[int],
    length: int,
    *,
    vocab_size: int,
    temperature: float = 1.0,
    top_k: int = 0,
) -> list[int]:
    """Draws a continuation from a model's `next_token_logits`.

    The model is asked again for each token, and sees the last `max_length - 1` of them.

    Args:
      estimator: of a registered model.
      hparams: the model's.
      prompt: token ids.
      length: most tokens to add; an end of document ends the sample too.
      vocab_size: of the problem; a model may have more logits.
      temperature: see `draw`.
      top_k: see `draw`.

    Returns:
      the added token ids, without an end of document.

    Raises:
      ValueError: `length`, `temperature` or `top_k` is negative.
    """
    if min(length, temperature, top_k) < 0:
        raise ValueError(
            f"length {length}, temperature {temperature} and top_k {top_k} must be at least 0"
        )
    features = prediction_features(estimator.layout, hparams)
    generator = np.random.default_rng(estimator.config.random_seed)
    cluster = estimator.connect()
    targets = np.zeros(features["targets"].shape.to_integer_list, np.int32)

    def next_token(tokens: list[int]) -> int:
        seen = tokens[max(0, len(tokens) - hparams.max_length + 1) :]
        targets[:, : len(seen)] = seen
        batch = {"targets": targets, "position": np.int32(len(seen))}
        logits = estimator.predict(features, batch)["logits"][0, :vocab_size]
        drawn = draw(logits, generator, temperature, top_k)
        # What one process adds, all add: of logits that differ in a bit they might draw two tokens.
        return int(cluster.agree("token", str(drawn)))

    return extend(prompt, length, next_token)


def extend(prompt: Sequence[int], length: int, next_token: Callable[[list[int]], int]) -> list[int]:
    """The tokens that follow a prompt, at most `length`, up to an end of document.

    Args:
      prompt: token ids.
      length: most tokens to add.
      next_token: all tokens so far -> the next one.
    """
    tokens = list(prompt)
    for _ in range(length):
        token = next_token(tokens)
        if token == END_OF_DOCUMENT:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def draw(
    logits: np.ndarray, generator: np.random.Generator, temperature: float, top_k: int = 0
) -> int:
    """Draws a token.

    Args:
      logits: float32 [vocab].
      generator: of random numbers.
      temperature: divides the logits; 0: the most probable token.
      top_k: only so many of the most probable tokens are possible; 0: all.
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    if 0 < top_k < len(scaled):
        scaled[scaled < np.partition(scaled, -top_k)[-top_k]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    return int(generator.choice(len(weights), p=weights / weights.sum()))
