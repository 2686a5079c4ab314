"""The memory of a step on a processor: the buffers that are alive at each operation.

A buffer lives from the operation that computes it to the last operation that reads it. The peak of
a step follows from program order:

    operation        forward 0  forward 1  loss  backward 1  backward 0
    activation 0     ---------------------------------------------------
    activation 1                ----------------------------
    gradient 1                                   -----------------------
    alive                1          2       2        3           2

The lowered program has the tensors that t2tp's own kernels save. The kernels of other software
stacks save other tensors of the same layer (`Retained`). V. Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), section 4.1, list the
tensors that Megatron saves. FlashAttention saves the result and the log of each query's sum of
exponentials (T. Dao, "FlashAttention-2", arXiv:2307.08691, section 3.1).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.operation import hooks
from t2tp.mesh.layer_names import layer_of
from t2tp.mesh.layout import Layout
from t2tp.ops.attention.operation import AttentionOperation
from t2tp.ops.cross_entropy.operation import CrossEntropyGradOperation, CrossEntropyOperation
from t2tp.ops.dropout import DropoutOperation
from t2tp.step.fusion import Chains
from t2tp.step.kernels import WITHOUT_KERNEL, Kernels
from t2tp.step.memory import Memory
from t2tp.step.order import Placed, as_soon_as_possible, is_sharding, is_weight
from t2tp.step.slices import kind_of, slice_bytes, slice_elements
from t2tp.step.work import BACKWARD, ELEMENTWISE, FORWARD, UPDATE

_FLOAT32, _MASK = 4, 1
# Parts of a step whose peak includes saved activations.
_FORWARD_END, _BACKWARD_BEGIN = "end of the forward pass", "beginning of the backward pass"
_BACKWARD_END = "end of the backward pass"
WITH_ACTIVATIONS = (_FORWARD_END, _BACKWARD_BEGIN)


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
        if self._software.attention not in WITHOUT_KERNEL:
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


class Liveness:
    """The lifetimes of a step's buffers.

    Attributes:
      given: the operations in program order.
      placed: the operations in the order in which a processor executes them.
      buffers: all buffers; `first_def` and `last_use` are indices of `placed`.
      layer_bytes: total bytes, by purpose, of the buffers whose number grows with the number of
        layers (`Buffer.counts`): activations `kept` for the backward pass, `gathered` weights in
        the activations' dtype, `gradients`, and their `sums` over microbatches.
    """

    def __init__(
        self,
        placed: Sequence[Placed],
        outputs: Iterable[upstream.Tensor],
        layout: Layout,
        software: Kernels,
    ) -> None:
        """Computes the lifetimes; the kernels of `software` determine which tensors are saved."""
        self.given, self.layout, self.software = placed, layout, software
        placed = as_soon_as_possible(placed)
        outputs = list(outputs)
        self.placed = placed
        stage = layout.storage.stage
        self._keeps_buffers = software.keeps_buffers and stage < 3
        # A processor's slice of a reduced gradient stays in the buffer of the whole gradient.
        self._shards_in_place = self._keeps_buffers and stage < 2
        self._retained = Retained(placed, outputs, layout, software)
        self._root: dict[upstream.Tensor, upstream.Tensor] = {}
        self._of: dict[upstream.Tensor, Buffer] = {}
        self._last_reader = {x: each for each in placed for x in self._retained.reads(each)}
        for i, each in enumerate(placed):
            self._visit(i, each)
        for tensor in outputs:
            self._read(tensor, len(placed))
        # A pipeline reduces the gradients of a stage together, at the end of its backward pass.
        ends = {each.part: i for i, each in enumerate(placed)}
        self._waiting = {
            self._root_of(each.operation.inputs[0]): ends[each.part]
            for each in placed
            if each.part and is_sharding(each)
        }
        for tensor, end in self._waiting.items():
            self._read(tensor, end)
        for tensor, held in self._of.items():
            self._set_purpose(tensor, held)
        self.buffers = [*self._of.values(), *self._retained.buffers()]
        self.layer_bytes = Counter(dict.fromkeys(("kept", "gathered", "gradients", "sums"), 0))
        for held in self.buffers:
            if held.counts and held.purpose in self.layer_bytes:
                self.layer_bytes[held.purpose] += held.num_bytes

    def _visit(self, i: int, each: Placed) -> None:
        op = each.operation
        for x in self._retained.reads(each):
            self._read(x, i)
        if isinstance(op, upstream.WhileLoopOperation):
            self._pass_on(i, op)
        elif each.is_view and op.inputs:
            # A recomputed function has a `CustomGradientOperation`, whose outputs are views of the
            # function's results.
            is_recomputed = isinstance(op, upstream.CustomGradientOperation)
            sources = op._fn_outputs if is_recomputed else op.inputs
            for y, x in zip(op.outputs, sources, strict=False):
                self._root[y] = self._root_of(x)
        elif each.is_computed:
            if self._shards_in_place and is_sharding(each):
                scaled: upstream.Tensor | None = self._root_of(op.inputs[0])
            else:
                scaled = self._scaled_gradient(each)
            for y in op.outputs:
                if scaled is None:
                    self._make(y, i)
                else:
                    self._root[y] = scaled

    def _scaled_gradient(self, each: Placed) -> upstream.Tensor | None:
        """Returns the gradient that an update scales, clips or averages in place."""
        op = each.operation
        if each.phase != UPDATE or kind_of(op) != ELEMENTWISE or len(op.outputs) != 1:
            return None
        (y,) = op.outputs
        for x in op.inputs:
            root = self._root_of(x)
            held = self._of.get(root)
            is_alike = (x.shape, x.dtype) == (y.shape, y.dtype)
            if held is not None and is_alike and self._last_reader.get(x) is each:
                is_sum = isinstance(root.operation, upstream.WhileLoopOperation)
                if is_sum or self._phase(held.first_def) == BACKWARD:
                    return root
        return None

    def _make(self, tensor: upstream.Tensor, i: int) -> None:
        size, name = self._retained.num_bytes(tensor), tensor.name.removesuffix(":0")
        self._of[tensor] = Buffer(size, i, i, name=name, shape=tensor.shape, dtype=tensor.dtype)

    def _read(self, tensor: upstream.Tensor, i: int) -> None:
        held = self._of.get(self._root_of(tensor))
        if held is not None:
            held.last_use = max(held.last_use, i)

    def _pass_on(self, i: int, op: upstream.WhileLoopOperation) -> None:
        """Allocates the outputs of a loop, which are sums, at the first operation of the loop."""
        inside = set(op._body_ops)
        begin = next((n for n, p in enumerate(self.placed) if p.operation in inside), 0)
        for y in op.outputs:
            self._make(y, min(i, begin))

    def _root_of(self, tensor: upstream.Tensor) -> upstream.Tensor:
        return self._root.get(tensor, tensor)

    def _phase(self, i: int) -> str:
        return self.placed[i].phase if i < len(self.placed) else UPDATE

    def _set_purpose(self, tensor: upstream.Tensor, held: Buffer) -> None:
        made, last = self._phase(held.first_def), self._phase(held.last_use)
        op = tensor.operation
        if isinstance(op, upstream.ops.ImportLaidOutTensorOperation):
            held.purpose = "features"
        elif isinstance(op, upstream.WhileLoopOperation):
            held.purpose = "sums"
        elif is_weight(op):
            held.purpose = "gathered"
            held.counts = made == FORWARD and last != FORWARD
        elif made == FORWARD and last != FORWARD:
            held.purpose = "kept"
        elif (made == BACKWARD and last == UPDATE) or tensor in self._waiting:
            held.purpose = "gradients"
        if self._keeps_buffers and held.purpose in ("sums", "gathered", "gradients"):
            held.first_def, held.last_use, held.counts = 0, len(self.placed), True

    def peaks(self) -> list[Memory]:
        """Returns the peak of each part of a step."""
        alive: dict[str, float] = {}
        peaks: dict[tuple[str, tuple[str, ...]], Memory] = {}
        born: dict[int, list[Buffer]] = {}
        freed: dict[int, list[Buffer]] = {}
        for held in self.buffers:
            born.setdefault(held.first_def, []).append(held)
            freed.setdefault(held.last_use, []).append(held)
        points = _points(self.placed, self._keeps_buffers)
        for i, each in enumerate(self.placed):
            new, old = born.get(i, []), freed.get(i, [])
            gone = [held.num_bytes for held in old if held.first_def != i]
            reused = _in_place(each, [held.num_bytes for held in new], gone)
            for held in new:
                alive[held.purpose] = alive.get(held.purpose, 0.0) + held.num_bytes
            point = next(points)
            total = sum(alive.values()) - reused
            if point not in peaks or total > peaks[point].total:
                by_purpose = dict(alive)
                by_purpose["temporary"] = by_purpose.get("temporary", 0.0) - reused
                peaks[point] = Memory(*point, by_purpose)
            for held in old:
                alive[held.purpose] -= held.num_bytes
        return list(peaks.values())


def _in_place(each: Placed, new: Sequence[int], gone: Sequence[int]) -> float:
    """Returns the bytes of an output that reuses an input's buffer; 0: no buffer is reused."""
    if kind_of(each.operation) != ELEMENTWISE or len(new) != 1:
        return 0.0
    return float(new[0]) if new[0] in gone else 0.0


def _points(placed: Sequence[Placed], has_buffers: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the part of the step, and the value of `Memory.layers`, for each operation."""
    always = ("gathered", "gradients") if has_buffers else ()
    kept = ("kept", *always) if has_buffers else ("kept", "gathered")
    gradients = always or ("gradients",)
    layers = [layer_of(each.operation.name) for each in placed]
    in_forward = [x for x, p in zip(layers, placed, strict=True) if x and p.phase == FORWARD]
    reached_first = False
    for each, layer in zip(placed, layers, strict=True):
        if each.phase == FORWARD:
            yield _FORWARD_END, kept
        elif each.phase == UPDATE:
            yield "update", gradients
        else:
            # Between the last layer and the first, activations are freed and gradients are made
            # at constant rates, so the memory is highest at one of these two layers.
            reached_first |= layer in in_forward[:1]
            yield (_BACKWARD_END, gradients) if reached_first else (_BACKWARD_BEGIN, kept)
