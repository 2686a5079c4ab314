"""The kernels that run a step, as far as they change what is computed and what is saved."""

from dataclasses import dataclass
from typing import Annotated

from t2tp.hparam_limits import Limits

# Values of `attention` without a dedicated kernel: separate matmuls, or t2tp's own operation.
WITHOUT_KERNEL = ("unfused", "engine")


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
      fragmentation: bytes that the allocator cannot use because free memory is in small pieces, as
        a share of the bytes that each step allocates.
    """

    attention: str = "engine"
    fuses: bool = False
    keeps_masks: bool = False
    float32_logits: Annotated[int, Limits(min=0, max=4)] = 0
    keeps_buffers: bool = False
    gathers_again: bool = False
    repeats_all: bool = False
    fragmentation: Annotated[float, Limits(min=0.0, max=1.0)] = 0.0


# t2tp's kernels in a step that XLA compiles. The fragmentation is measured: two steps of GPT-2 124M
# on an H200 (benchmarks/gpu/nvidia_h200.json).
XLA = Kernels(attention="cudnn", fuses=True, fragmentation=0.28)


def own_kernels(devices: int, *, on_cpu: bool) -> Kernels:
    """Returns t2tp's own kernels. XLA compiles the whole step only on a single GPU."""
    if on_cpu:
        return Kernels()
    return XLA if devices == 1 else Kernels(fragmentation=XLA.fragmentation)
