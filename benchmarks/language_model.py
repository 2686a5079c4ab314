"""The language model that every peer trains: its sizes, initial values, data and arithmetic.

A decoder of pre-norm blocks: RMS norms, causal attention, ReLU feed-forward, learned positions, an
output tied to the embedding; Adam with clipping by the global norm. The module imports only NumPy,
so that every peer's environment can import it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEARNING_RATE, BETA1, BETA2, EPSILON, CLIP_NORM = 1e-3, 0.9, 0.98, 1e-9, 1.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and of a batch."""

    d_model: int = 256
    heads: int = 8
    d_ff: int = 1024
    layers: int = 4
    vocab: int = 8192
    length: int = 128
    batch: int = 16

    @property
    def d_kv(self) -> int:
        return self.d_model // self.heads

    def matmul_flops(self) -> int:
        """FLOPs of the matmuls of a training step: 2 for each multiply-add, forward once and
        backward twice. The masked half of attention counts, because all peers compute it."""
        tokens = self.batch * self.length
        per_layer = 4 * self.d_model**2 + 2 * self.d_model * self.d_ff
        attention = 2 * self.length * self.d_model
        return 6 * tokens * (self.layers * (per_layer + attention) + self.vocab * self.d_model)


SIZES = {
    "design": Sizes(),
    "wide": Sizes(d_model=1024, heads=16, d_ff=4096, layers=2, batch=4),
    # Split dimensions are multiples of 128, the size of the largest mesh of the tracing benchmark.
    "meshes": Sizes(heads=128, d_model=256, layers=4, batch=16),
    # For pipelines: nearly all of the work is in layers.
    "deep": Sizes(layers=8, vocab=1024),
    # For pipelines with more work between two messages.
    "deep_wide": Sizes(d_model=512, d_ff=2048, layers=8, vocab=256, batch=32),
    # For text; models with gated feed-forward layers have 11 / 16 of this d_ff.
    "text": Sizes(d_model=64, heads=2, d_ff=256, layers=2, vocab=2048),
    "tiny_text": Sizes(d_model=32, heads=4, d_ff=128, layers=2, vocab=2048, length=32, batch=8),
    "tiny_deep": Sizes(d_model=32, heads=4, d_ff=64, layers=8, vocab=256, length=16, batch=8),
    "tiny": Sizes(d_model=32, heads=4, d_ff=64, layers=2, vocab=256, length=16, batch=8),
}


def initial_values(sizes: Sizes) -> dict[str, np.ndarray]:
    """Returns float32 weights by name; every peer begins with them."""
    random = np.random.default_rng(0)

    def normal(stddev: float, *shape: int) -> np.ndarray:
        return (stddev * random.standard_normal(shape)).astype(np.float32)

    d, h, k, f = sizes.d_model, sizes.heads, sizes.d_kv, sizes.d_ff
    values = {
        "embedding": normal(0.02, sizes.vocab, d),
        "positions": normal(0.02, sizes.length, d),
        "norm": np.ones(d, np.float32),
    }
    for layer in range(sizes.layers):
        values |= {
            f"{layer}/norm_1": np.ones(d, np.float32),
            f"{layer}/q": normal(d**-0.5, d, h, k),
            f"{layer}/k": normal(d**-0.5, d, h, k),
            f"{layer}/v": normal(d**-0.5, d, h, k),
            f"{layer}/out": normal(d**-0.5, h, k, d),
            f"{layer}/norm_2": np.ones(d, np.float32),
            f"{layer}/up": normal(d**-0.5, d, f),
            f"{layer}/down": normal(f**-0.5, f, d),
        }
    return values


def targets(sizes: Sizes) -> np.ndarray:
    """Returns int32 [batch, length], without token 0: models read 0 before the first target."""
    random = np.random.default_rng(1)
    return random.integers(1, sizes.vocab, (sizes.batch, sizes.length)).astype(np.int32)
