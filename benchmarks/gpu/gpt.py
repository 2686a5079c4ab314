"""The GPT-2 models that every peer trains: sizes, initial values, data and arithmetic.

A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks,
layer norms, GELU (tanh), biases, learned positions, an output tied to the embedding. AdamW with
clipping by the global norm; float32 weights, bfloat16 matmuls. The module imports only NumPy, so
that every peer's environment can import it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY, CLIP_NORM = 1e-4, 0.9, 0.95, 1e-8, 0.1, 1.0
NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model."""

    d_model: int
    heads: int
    layers: int
    vocab: int = 50304  # 50257, rounded up to a multiple of 128

    @property
    def d_kv(self) -> int:
        return self.d_model // self.heads

    @property
    def d_ff(self) -> int:
        return 4 * self.d_model

    def matmul_parameters(self) -> int:
        """Number of weights by which every token is multiplied."""
        return 12 * self.layers * self.d_model**2 + self.vocab * self.d_model

    def flops_per_token(self, length: int) -> int:
        """Returns a training step's FLOPs per token ("PaLM", arXiv:2204.02311, appendix B).

        The masked half of attention is included.
        """
        return 6 * self.matmul_parameters() + 12 * self.layers * self.d_model * length


MODELS = {
    "124M": Sizes(768, 12, 12),
    "1.3B": Sizes(2048, 16, 24),
    "tiny": Sizes(64, 4, 2, vocab=512),
}


def weight_shapes(sizes: Sizes, length: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the weights by name, without biases and norms."""
    d, h, k, f = sizes.d_model, sizes.heads, sizes.d_kv, sizes.d_ff
    shapes: dict[str, tuple[int, ...]] = {"embedding": (sizes.vocab, d), "positions": (length, d)}
    for layer in range(sizes.layers):
        shapes |= {f"{layer}/{name}": (d, h, k) for name in "qkv"}
        shapes |= {f"{layer}/out": (h, k, d), f"{layer}/up": (d, f), f"{layer}/down": (f, d)}
    return shapes


def initial_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the float32 initial value of a weight; biases begin as 0 and norms as 1.

    A table of random numbers is repeated, because drawing 1.3 billion numbers takes a minute.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    table = 0.02 * random.standard_normal(1_000_003, dtype=np.float32)
    return np.resize(table, shape)


def targets(sizes: Sizes, batch: int, length: int) -> np.ndarray:
    """Returns int32 [batch, length], without token 0: models read 0 before the first target."""
    random = np.random.default_rng(1)
    return random.integers(1, sizes.vocab, (batch, length)).astype(np.int32)


def packed(sizes: Sizes, batch: int, length: int, segments: str) -> dict[str, np.ndarray]:
    """Returns the features of a batch.

    With `segments="packed"`, each row has five documents of odd lengths; else it has one.
    """
    ends = [length * part // 11 for part in (1, 3, 4, 8)] if segments == "packed" else []
    numbers = 1 + np.searchsorted(ends, np.arange(length), side="right")
    begins = np.array([0, *ends])[numbers - 1]
    row = {"targets_segmentation": numbers, "targets_position": np.arange(length) - begins}
    shape = (batch, length)
    return {"targets": targets(sizes, *shape)} | {
        name: np.broadcast_to(value.astype(np.int32), shape) for name, value in row.items()
    }
