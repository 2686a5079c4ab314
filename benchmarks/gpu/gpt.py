"""The GPT-2 models that every peer trains: sizes, initial values, data and arithmetic.

A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks,
layer norms, GELU (tanh), biases, learned positions, an output tied to the embedding. AdamW with
clipping by the global norm; float32 weights, bfloat16 products. Only NumPy is needed here, so that
every peer's environment can read it.
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
        """Weights that every token is multiplied with."""
        return 12 * self.layers * self.d_model**2 + self.vocab * self.d_model

    def flops_per_token(self, length: int) -> int:
        """FLOPs of a training step: A. Chowdhery et al., "PaLM" (arXiv:2204.02311), appendix B.

        Attention is counted whole, including the masked half.
        """
        return 6 * self.matmul_parameters() + 12 * self.layers * self.d_model * length


MODELS = {
    "124M": Sizes(768, 12, 12),
    "1.3B": Sizes(2048, 16, 24),
    "tiny": Sizes(64, 4, 2, vocab=512),
}


def weight_shapes(sizes: Sizes, length: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights by name; biases and norms are not among them."""
    d, h, k, f = sizes.d_model, sizes.heads, sizes.d_kv, sizes.d_ff
    shapes: dict[str, tuple[int, ...]] = {"embedding": (sizes.vocab, d), "positions": (length, d)}
    for layer in range(sizes.layers):
        shapes |= {f"{layer}/{name}": (d, h, k) for name in "qkv"}
        shapes |= {f"{layer}/out": (h, k, d), f"{layer}/up": (d, f), f"{layer}/down": (f, d)}
    return shapes


def initial_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32; every peer begins with these values, zero biases and unit norms.

    A table of random numbers is repeated: whoever draws 1.3 billion waits for a minute.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    table = 0.02 * random.standard_normal(1_000_003, dtype=np.float32)
    return np.resize(table, shape)


def targets(sizes: Sizes, batch: int, length: int) -> np.ndarray:
    """int32 [batch, length]; token 0 is never among them: it stands before the first."""
    random = np.random.default_rng(1)
    return random.integers(1, sizes.vocab, (batch, length)).astype(np.int32)
