"""The tensors that the kernels of a software stack save for the backward pass.

The lowered program has the tensors that t2tp's own kernels save. The kernels of other software
stacks save other tensors of the same layer. V. Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4.1, list the tensors that
Megatron saves. FlashAttention saves the result and the log of each query's sum of exponentials (T.
Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.operation import hooks
from t2tp.mesh.layout import Layout
from t2tp.ops.attention.operation import AttentionOperation
from t2tp.ops.cross_entropy.operation import CrossEntropyGradOperation, CrossEntropyOperation
from t2tp.ops.dropout import DropoutOperation
from t2tp.step.fusion import Chains
from t2tp.step.kernels import Kernels
from t2tp.step.order import Placed
from t2tp.step.slices import slice_bytes, slice_elements
from t2tp.step.work import BACKWARD, FORWARD

_FLOAT32, _MASK = 4, 1


@dataclass(eq=False)
class Buffer:
    """A buffer of a processor.

    Attributes:
      first_def: index of the operation that computes it.
      last_use: index of the last operation that reads it.
      purpose: one of `PURPOSES`; or `sums`, for sums over microbatches.
      counts: whether the buffer belongs to a layer. A model with more layers has more of these.
      name, shape, dtype: the tensor in it; empty if the program has no such tensor.
      is_workspace: whether it exists only inside an operation.
    """

    num_bytes: int
    first_def: int
    last_use: int
    purpose: str = "temporary"
    counts: bool = True
    name: str = ""
    shape: upstream.Shape | None = None
    dtype: tf.DType | None = None
    is_workspace: bool = False


class Retained:
    """The tensors of a program that are in memory, and the operations that read them."""

    def __init__(
        self,
        placed: Sequence[Placed],
        outputs: Iterable[upstream.Tensor],
        layout: Layout,
        software: Kernels,
    ) -> None:
        self._placed = placed
        self._layout = layout
        self._software = software
        self._chains = Chains(placed, outputs, layout) if software.fuses else None
        # Operations that are recomputed. The masks of their first execution are not saved.
        self._repeated = {
            op
            for each in placed
            if isinstance(each.operation, upstream.CustomGradientOperation)
            for op in each.operation._forward_operations
        }
        self._gathered = {
            each.operation.outputs[0]: each.operation.inputs[0]
            for each in placed
            if software.gathers_again and _gathers_activations(each)
        }

    def num_bytes(self, tensor: upstream.Tensor) -> int:
        """Returns the bytes of a processor's slice of a tensor; 0 if a kernel does not write it."""
        if self._chains is not None and not self._chains.is_written(tensor):
            return 0
        op = tensor.operation
        if isinstance(op, AttentionOperation) and self._software.attention != "engine":
            return self._attention_bytes(op, op.outputs.index(tensor))
        return slice_bytes(tensor, self._layout)

    def reads(self, each: Placed) -> Iterator[upstream.Tensor]:
        """Yields the tensors in memory that an operation reads."""
        op = each.operation
        is_loss = isinstance(op, CrossEntropyGradOperation)
        for i, x in enumerate(op.inputs):
            if is_loss and i == 0 and self._software.float32_logits == 1:
                continue  # The gradient reads the float32 copy; the logits are freed earlier.
            if each.phase == BACKWARD and not each.is_recomputed:
                x = self._gathered.get(x, x)
            if self._chains is None:
                yield x
            else:
                yield from self._chains.read_for(x, op)

    def buffers(self) -> Iterator[Buffer]:
        """Yields the buffers that kernels need in addition to the program's tensors."""
        made: dict[str, tuple[int, int]] = {}
        logits: dict[upstream.Tensor, int] = {}
        for i, each in enumerate(self._placed):
            op = each.operation
            for shape, dtype in hooks(op).temporaries(self._layout):
                size = dtype.size * math.prod(self._layout.slice_size(shape))
                name = f"{op.name} (temporary)"
                yield Buffer(size, i, i, name=name, shape=shape, dtype=dtype, is_workspace=True)
            if each.phase == BACKWARD and not each.is_recomputed:
                for x in op.inputs:
                    if x in self._gathered:
                        yield Buffer(slice_bytes(x, self._layout), i, i)
            if self._software.keeps_masks and isinstance(op, DropoutOperation):
                if op in self._repeated and not each.is_recomputed:
                    continue
                if op.name == op._rng_name:  # It draws the mask.
                    made[op.name] = (i, _MASK * slice_elements(op.outputs[0], self._layout))
                elif op._rng_name in made:
                    begin, size = made.pop(op._rng_name)
                    is_kept = self._placed[begin].phase == FORWARD
                    yield Buffer(size, begin, i, "kept" if is_kept else "temporary")
            copies = self._software.float32_logits
            if copies and isinstance(op, CrossEntropyOperation):
                logits[op.inputs[0]] = i
            if isinstance(op, CrossEntropyGradOperation) and op.inputs[0] in logits:
                size = _FLOAT32 * slice_elements(op.inputs[0], self._layout)
                yield Buffer(size, logits.pop(op.inputs[0]), i, "kept")
                yield Buffer((copies - 1) * size, i, i)

    def _attention_bytes(self, op: AttentionOperation, output: int) -> int:
        """Returns the bytes of an output of attention, as another software saves it."""
        result = op.outputs[0]
        if output == 0:
            return slice_bytes(result, self._layout)
        if output == 2:  # The rounding error of the result, which only the engine saves.
            return 0
        options = op._options
        if self._software.has_kernel:
            return _FLOAT32 * slice_elements(result, self._layout) // result.shape.dims[-1].size
        if options.is_blockwise:  # The backward pass computes the weights and softmax sums again.
            return 0
        weights = op.outputs[1]
        size = slice_bytes(weights, self._layout)
        if self._software.keeps_masks and options.dropout_rate > 0:
            return 2 * size + _MASK * slice_elements(weights, self._layout)
        return size


def _gathers_activations(each: Placed) -> bool:
    """Whether an operation gathers activations in the forward pass."""
    is_gather = any(collective.kind == "allgather" for collective in each.collectives)
    is_reshape = isinstance(each.operation, upstream.ReshapeOperation)
    return is_reshape and is_gather and each.phase == FORWARD and not each.is_of_state
