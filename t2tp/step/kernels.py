"""The kernels that run a step, as far as they change what is computed and what is saved."""

# This import makes the types of fields text, as cluster_file.py expects.
from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any

from t2tp.hparam_limits import Limits

# Values of `attention` without a dedicated kernel: separate matmuls, or t2tp's own operation.
WITHOUT_KERNEL = ("unfused", "engine")


def key(default: Any = MISSING, **limits: Any) -> Any:
    """Declares a key of a cluster file with the limits of its values."""
    return field(default=default, metadata={"limits": Limits(**limits)})


@dataclass(frozen=True)
class Kernels:
    """The kernels of a software stack. The defaults describe t2tp without XLA.

    Attributes:
      attention: name of a dedicated kernel, which saves no scores; `unfused`: separate matmuls,
        which save the scores if the program saves them; or `engine`: t2tp's own operation, which
        saves the tensors that the program saves.
      fuses: whether a chain of element-wise operations is one kernel, which saves no intermediate
        results. The backward pass recomputes them.
      keeps_masks: whether dropout saves its mask, a byte per element, and unfused attention saves
        its weights before and after dropout. Otherwise the backward pass draws the masks again.
      float32_logits: number of float32 copies of the logits that exist when the loss's gradient is
        computed. The forward pass saves the first copy. A fused loss has 0 copies, Megatron's loss
        1, and PyTorch's `cross_entropy` 3: log-probabilities, their gradients, and the gradients of
        the logits.
      keeps_buffers: whether gradients, and weights in the activations' dtype, have permanent
        buffers.
      gathers_again: whether sequence parallelism saves the inputs of matmuls as slices, and gathers
        them again for the gradients of the weights.
      repeats_all: whether recomputation repeats whole layers, including operations that no gradient
        needs.
    """

    attention: str = "engine"
    fuses: bool = False
    keeps_masks: bool = False
    float32_logits: int = key(0, min=0, max=4)
    keeps_buffers: bool = False
    gathers_again: bool = False
    repeats_all: bool = False

    @property
    def has_kernel(self) -> bool:
        """Whether a dedicated kernel computes attention, and saves no scores."""
        return self.attention not in WITHOUT_KERNEL


# t2tp's kernels in a step that XLA compiles.
XLA = Kernels(attention="cudnn", fuses=True)


def own_kernels(devices: int, *, on_cpu: bool) -> Kernels:
    """Returns t2tp's own kernels. XLA compiles the whole step only on a single GPU."""
    return Kernels() if on_cpu or devices > 1 else XLA
