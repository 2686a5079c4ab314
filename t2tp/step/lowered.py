"""A step lowered for one processor: counts of work and traffic, and bytes of memory."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from t2tp import upstream
from t2tp.lowering.deferred_sums import BUCKET
from t2tp.lowering.lowering import all_operations
from t2tp.lowering.operation import hooks
from t2tp.mesh.layer_names import layer_of
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import shape_in_use
from t2tp.ops.attention.operation import AttentionOperation
from t2tp.ops.flops import matmul_flops
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.messages import MessageKind
from t2tp.program.program import Program
from t2tp.step import fusion
from t2tp.step.kernels import Kernels
from t2tp.step.lifetimes import WITH_ACTIVATIONS, Liveness
from t2tp.step.memory import PURPOSES, Memory
from t2tp.step.order import Placed, program_order
from t2tp.step.slices import slice_bytes
from t2tp.step.work import BACKWARD, FORWARD, Traffic, Work

_FLOAT32 = 4  # Bytes.
# A slot's name consists of its variable's name, one of these suffixes, and the kind of slot.
_SLOT_SUFFIXES = ("/", "_slot_", "_momentum_")


@dataclasses.dataclass
class LoweredStep:
    """A step on one processor.

    Attributes:
      work: number of operations with each `Work`; may be a fraction, see `Hooks.unpadded_share`.
      traffic: number of collectives with each `Traffic`; may be a fraction, too.
      variables: bytes of a processor's variables by purpose: `weights` and `optimizer`.
      shapes: number of the model's trainable variables by their dimensions.
      memory: the peaks of the parts of the step, without variables.
      layer_bytes: see `Liveness`.
      flops: FLOPs of the forward pass's matmuls on the whole mesh, as `matmul_flops` counts them.
      hidden_flops: FLOPs of scores that a causal mask hides.
      arguments: number of variables and slots, which each launch of the step passes.
      layer_weights: number of weights of the largest layer that a processor uses; 0 without layers.
    """

    layout: Layout
    work: Mapping[Work, float]
    traffic: Mapping[Traffic, float]
    variables: Counter[str]
    shapes: Counter[tuple[upstream.Dimension, ...]]
    memory: list[Memory]
    layer_bytes: Counter[str]
    flops: float
    hidden_flops: float
    layer_weights: int
    arguments: int

    @classmethod
    def from_program(
        cls,
        program: Program,
        *,
        software: Kernels = Kernels(),  # noqa: B008  (immutable)
    ) -> LoweredStep:
        """Lowers the program of a step.

        The kernels of `software` determine which tensors are saved, and which element-wise
        operations are fused.
        """
        log = program.collective_log()
        graph, outputs = program.graph()
        needed = list(outputs.values())
        placed = program_order(graph.operations, needed, log, repeats_all=software.repeats_all)
        lifetimes = Liveness(placed, needed, program.layout, software)
        return cls.from_lifetimes(lifetimes, graph, needed)

    @classmethod
    def from_lifetimes(
        cls,
        lifetimes: Liveness,
        graph: upstream.Graph,
        needed: Sequence[upstream.Tensor],
        unused: Sequence[upstream.Variable] = (),
    ) -> LoweredStep:
        """Counts the operations of a processor.

        `unused` are trainable variables that this processor does not have.
        """
        placed, layout, software = lifetimes.given, lifetimes.layout, lifetimes.software
        peaks = lifetimes.peaks()
        # The loop over microbatches sums the gradients of all variables. The sums of variables that
        # this processor does not have are subtracted.
        for peak in peaks:
            peak.by_purpose["sums"] = peak.by_purpose.get("sums", 0) - sum(
                _FLOAT32 * _gradient_elements(variable, layout) for variable in unused
            )
        flops, hidden = _model_flops(placed)
        return cls(
            layout,
            fusion.works(placed, needed, layout, fuses=software.fuses),
            _sends(placed, layout, software),
            bytes_by_purpose(graph, layout, unused),
            Counter(tuple(v.shape.dims) for v in graph.trainable_variables),
            peaks,
            lifetimes.layer_bytes,
            flops,
            hidden,
            largest_layer(graph, layout),
            len(graph.all_variables),
        )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters of the whole model."""
        return sum(n * math.prod(dim.size for dim in dims) for dims, n in self.shapes.items())

    def memory_by_point(self) -> dict[str, dict[str, float]]:
        """Returns all bytes by purpose at the peak of each part of the step, in order."""
        points = {}
        for peak in self.memory:
            points[peak.point] = held = dict.fromkeys(PURPOSES, 0.0)
            for purpose, size in [*self.variables.items(), *peak.by_purpose.items()]:
                held["gradients" if purpose == "sums" else purpose] += size
            # The large all-reduces carry gradients. They run after the activations are freed, so
            # their buffers do not count at a peak with activations. Small gradients share a buffer.
            # A plan knows the bytes of all gradients, but not which of them share: it lowers few
            # layers.
            if peak.point not in WITH_ACTIVATIONS:
                sums = {t: n for t, n in self.traffic.items() if t.kind == "allreduce"}
                total = sum(n * t.num_bytes for t, n in sums.items())
                largest = max((t.num_bytes for t in sums), default=0)
                held["buffers"] = float(max(largest, min(BUCKET, total)))
        return points

    def extended(self, longer: LoweredStep, shorter: LoweredStep, times: int) -> LoweredStep:
        """Returns the step with more layers: adds the difference of two steps `times` times."""
        long_bytes, short_bytes = longer.layer_bytes, shorter.layer_bytes
        memory = []
        for peak in self.memory:
            by_purpose = dict(peak.by_purpose)
            for purpose in (*peak.layers, "sums"):
                more = times * (long_bytes[purpose] - short_bytes[purpose])
                by_purpose[purpose] = by_purpose.get(purpose, 0) + more
            memory.append(Memory(peak.point, peak.layers, by_purpose))

        def added(name: str) -> Counter:
            mine, long, short = (Counter(getattr(step, name)) for step in (self, longer, shorter))
            # Small sums share all-reduces, and the two steps may group them differently. Counts may
            # therefore be negative.
            keys = {**mine, **long, **short}
            totals = {key: mine[key] + times * (long[key] - short[key]) for key in keys}
            return Counter({key: total for key, total in totals.items() if total})

        names = ("work", "traffic", "variables", "shapes", "layer_bytes")
        counted: dict[str, Any] = {name: added(name) for name in names}
        return dataclasses.replace(
            self,
            memory=memory,
            arguments=self.arguments + times * (longer.arguments - shorter.arguments),
            flops=self.flops + times * (longer.flops - shorter.flops),
            hidden_flops=self.hidden_flops + times * (longer.hidden_flops - shorter.hidden_flops),
            **counted,
        )


def _gradient_elements(variable: upstream.Variable, layout: Layout) -> int:
    if layout.storage.stage >= 2:
        return math.prod(layout.slice_size(variable.shape))
    return elements_in_use(variable, layout)


def _sends(placed: Sequence[Placed], layout: Layout, stack: Kernels) -> dict[Traffic, float]:
    traffic: defaultdict[Traffic, float] = defaultdict(float)
    for p in placed:
        for c in p.collectives:
            each = (c.axes, p.phase, c.times, c.bytes, p.is_of_state, p.is_recomputed, p.part)
            made = Traffic(c.kind, *each)
            traffic[made] += hooks(p.operation).unpadded_share(layout)
            is_gradient = p.phase == BACKWARD and not (p.is_of_state or p.is_recomputed)
            if stack.gathers_again and is_gradient and c.kind == "reducescatter":
                size = c.bytes // c.group_size
                traffic[dataclasses.replace(made, kind="allgather", num_bytes=size)] += 1
    return traffic


def _model_flops(placed: Sequence[Placed]) -> tuple[float, float]:
    """Returns the FLOPs of the forward pass, and its FLOPs for masked scores."""
    flops = hidden = 0.0
    for each in placed:
        op = each.operation
        if each.phase != FORWARD or isinstance(op, upstream.WhileLoopOperation):
            continue
        count = each.times * matmul_flops([op])
        flops += count
        if isinstance(op, AttentionOperation) and op._options.causal and not op._options.window:
            hidden += count / 2
    return flops, hidden


def pipeline_loop(operations: Iterable[upstream.Operation]) -> PipelineLoop | None:
    """Finds the loop of a program's pipeline; None if there is none."""
    loops = (op for op in all_operations(operations) if isinstance(op, PipelineLoop))
    return next(loops, None)


@dataclasses.dataclass(frozen=True)
class ChunkBytes:
    """The bytes of a microbatch by chunk of a stage.

    Attributes:
      kept: bytes of activations that a forward pass saves in the chunk's layers.
      results: bytes of the activations that the chunk's layers return.
      messages: bytes of these activations that a processor sends to the next stage.
    """

    kept: tuple[int, ...]
    results: tuple[int, ...]
    messages: tuple[int, ...]

    @classmethod
    def of_loop(cls, loop: PipelineLoop, layout: Layout) -> ChunkBytes:
        """Reads the sizes from a lowered loop."""

        def size(tensors: Sequence[upstream.Tensor]) -> int:
            return sum(slice_bytes(x, layout) for x in tensors)

        numbers = range(len(loop.partition.enters))
        pieces = [loop.partition.pieces(c, max(loop.partition.exits[c])) for c in numbers]
        crossing = [loop.partition.exit_of(c).outputs for c in numbers]
        return cls(
            tuple(size(piece.saved_activations) for piece in pieces),
            tuple(map(size, crossing)),
            tuple(MessageKind.of_tensors(outputs, layout).num_bytes for outputs in crossing),
        )


def owner_of(slot: str, variables: Container[str]) -> str | None:
    """Returns the variable to which a slot belongs by its name; None if it is not a slot."""
    ends = (
        match.start() for suffix in _SLOT_SUFFIXES for match in re.finditer(f"(?={suffix})", slot)
    )
    return max((slot[:end] for end in ends if slot[:end] in variables), key=len, default=None)


def bytes_by_purpose(
    graph: upstream.Graph, layout: Layout, unused: Sequence[upstream.Variable] = ()
) -> Counter[str]:
    """Returns the bytes of a processor's `weights` and `optimizer` state.

    `unused` are trainable variables that this processor does not have; it lacks their slots, too.
    """
    held: Counter[str] = Counter()
    trained = {variable.name for variable in graph.trainable_variables}
    without = {variable.name for variable in unused}
    for variable in graph.all_variables:
        owner = None if variable.trainable else owner_of(variable.name, trained)
        if without.isdisjoint({variable.name, owner}):
            # A variable's shape is its shape at rest, as ZeRO shards it.
            size = math.prod(layout.slice_size(variable.shape)) * variable.slice_dtype.size
            held["weights" if owner is None else "optimizer"] += size
    return held


def elements_in_use(variable: upstream.Variable, layout: Layout) -> int:
    """Returns the number of a variable's elements that a processor uses."""
    return math.prod(layout.slice_size(shape_in_use(variable.shape)))


def largest_layer(graph: upstream.Graph, layout: Layout) -> int:
    """Returns the number of weights of the largest layer that a processor uses; 0: no layers."""
    sizes: Counter[str] = Counter()
    for variable in graph.trainable_variables:
        sizes[layer_of(variable.name)] += elements_in_use(variable, layout)
    del sizes[""]  # Variables outside of layers.
    return max(sizes.values(), default=0)
