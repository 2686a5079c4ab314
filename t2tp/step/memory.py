"""The memory of a step by purpose, and whether it fits into a device."""

from dataclasses import dataclass, field

from t2tp.step.kernels import Kernels

# Share of a device's memory that a step must leave free, for everything that the analysis does not
# model: workspace inside kernels, and blocks that the allocator cannot join.
HEADROOM = 0.05
# Bytes of an accelerator that the driver and the libraries occupy before a program begins.
RESERVED = 1.5e9

# Purposes of memory, in the order in which they are shown.
PURPOSES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "kept": "saved activations",
    "temporary": "peak of temporaries",
    "gathered": "weights in use",
    "buffers": "communication buffers",
    "features": "features",
    "fragmentation": "fragmentation",
    "reserved": "driver and libraries",
}
FITS = {"yes": "fits", "no": "does not fit", "borderline": "fits only without headroom"}


@dataclass
class Memory:
    """Bytes of one processor by purpose, at one point of a step.

    Attributes:
      point: the part of the step, such as `end of the forward pass`.
      layers: the purposes (keys of `Liveness.layer_bytes`) whose bytes are larger at this point if
        the model has more layers.
    """

    point: str
    layers: tuple[str, ...]
    by_purpose: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.by_purpose.values())


def usable(memory: float, headroom: float = HEADROOM) -> float:
    """Returns the bytes of a device's memory that a step may use."""
    return (1 - headroom) * memory


def fits(needed: float, memory: float, headroom: float = HEADROOM) -> str:
    """Returns whether a device has the memory: `yes`, `borderline` (in the headroom) or `no`.

    `needed` are all bytes at the peak of the step, including the driver's and the libraries' bytes.
    """
    if needed <= usable(memory, headroom):
        return "yes"
    return "borderline" if needed <= memory else "no"


def with_fragmentation(memory: dict[str, float], kernels: Kernels) -> dict[str, float]:
    """Adds the bytes lost to fragmentation. Tensors that outlast the step lose none."""
    lasting = {"weights", "optimizer", "features", "fragmentation", "reserved"}
    if kernels.keeps_buffers:
        lasting |= {"gradients", "gathered"}
    changing = sum(num_bytes for purpose, num_bytes in memory.items() if purpose not in lasting)
    return {**memory, "fragmentation": kernels.fragmentation * changing}
