"""The single layers that every peer trains: sizes, initial values, data and arithmetic.

Plain gradient descent trains a layer to map given inputs to given targets; the loss is the mean
squared difference. The module imports only NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: a router and feed-forward networks (ReLU, no biases).

    Each token goes to its two most probable experts (GShard, arXiv:2006.16668, section 2.2): the
    gates are their probabilities, scaled to a sum of 1. A group is a row of the batch. In a group,
    an expert computes at most `capacity` tokens: first the tokens that have chosen it first, then
    those that have chosen it second, each in the order of the row. Further tokens are dropped.
    """

    d_model: int = 256
    d_ff: int = 1024
    experts: int = 8
    capacity_factor: float = 1.25
    length: int = 128
    batch: int = 16

    @property
    def capacity(self) -> int:
        """Maximum number of tokens of a row that an expert computes."""
        return round(2 * self.length * self.capacity_factor / self.experts)

    def matmul_flops(self) -> int:
        """FLOPs of the matmuls of a training step: two experts for each token, 2 FLOPs
        for each multiply-add, forward once and backward twice. Unused capacity does not count."""
        return 6 * 2 * self.batch * self.length * 2 * self.d_model * self.d_ff

    def initial_values(self) -> dict[str, np.ndarray]:
        """Returns float32 weights by name."""
        random, d, f = np.random.default_rng(0), self.d_model, self.d_ff
        return {
            "router": _normal(random, d**-0.5, d, self.experts),
            "up": _normal(random, d**-0.5, self.experts, d, f),
            "down": _normal(random, f**-0.5, self.experts, f, d),
        }

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, float32 [batch, length, d_model]."""
        random, shape = np.random.default_rng(1), (self.batch, self.length, self.d_model)
        return _normal(random, 1.0, *shape), _normal(random, 1.0, *shape)


@dataclass(frozen=True)
class ConvolutionBlock:
    """ResNet's basic block (arXiv:1512.03385, section 3.3): two convolutions of 3x3, each with
    batch norm, ReLU between and after them, and the input added before the last ReLU.

    Batch norm is in training mode: it normalizes by the mean and the variance of the batch, and
    updates running averages.
    """

    channels: int = 64
    height: int = 32
    width: int = 32
    batch: int = 32

    def matmul_flops(self) -> int:
        """FLOPs of the convolutions of a training step: 2 for each multiply-add, forward once and
        backward twice."""
        pixels = self.batch * self.height * self.width
        return 6 * pixels * 2 * 9 * self.channels**2

    def initial_values(self) -> dict[str, np.ndarray]:
        """Returns float32 filters [height, width, in, out] by name; scales are 1 and offsets 0."""
        random, c = np.random.default_rng(0), self.channels
        return {n: _normal(random, (2 / 9 / c) ** 0.5, 3, 3, c, c) for n in ("conv_1", "conv_2")}

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, float32 [batch, height, width, channels]."""
        random, shape = np.random.default_rng(1), (self.batch, self.height, self.width)
        return _normal(random, 1.0, *shape, self.channels), _normal(
            random, 1.0, *shape, self.channels
        )


# Constants of batch norm.
EPSILON, MOMENTUM = 1e-5, 0.9

EXPERTS = {
    "design": Experts(),
    "wide": Experts(d_model=512, d_ff=2048),
    "tiny": Experts(d_model=32, d_ff=64, experts=4, length=16, batch=4),
}
CONVOLUTIONS = {
    "design": ConvolutionBlock(),
    "wide": ConvolutionBlock(channels=256, height=8, width=8),
    "tiny": ConvolutionBlock(channels=8, height=8, width=8, batch=4),
}


def _normal(random: np.random.Generator, stddev: float, *shape: int) -> np.ndarray:
    return (stddev * random.standard_normal(shape)).astype(np.float32)
