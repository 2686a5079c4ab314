"""A step lowered for one processor: counts of work and traffic, and bytes of memory."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from t2tp import upstream
from t2tp.lowering.operation import hooks
from t2tp.mesh.layer_names import layer_of
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import name_in_use
from t2tp.ops.attention.operation import AttentionOperation
from t2tp.ops.flops import matmul_flops
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step import fusion
from t2tp.step.kernels import Kernels
from t2tp.step.lifetimes import Liveness
from t2tp.step.order import Placed, program_order
from t2tp.step.work import BACKWARD, FORWARD, Memory, Traffic, Work

_FLOAT32 = 4  # Bytes.


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

    @classmethod
    def from_program(
        cls,
        program: AbstractProgram,
        *,
        software: Kernels = Kernels(),  # noqa: B008  (immutable)
    ) -> LoweredStep:
        """Lowers the program of a training step.

        The kernels of `software` determine which tensors are saved, and which element-wise
        operations are fused.
        """
        log = program.collective_log()
        graph, outputs = program.graph()
        needed = list(outputs.values())
        placed = program_order(graph.operations, needed, log, repeats_all=software.repeats_all)
        return cls.from_placed(placed, needed, graph, program.layout, software=software)

    @classmethod
    def from_placed(
        cls,
        placed: Sequence[Placed],
        needed: Sequence[upstream.Tensor],
        graph: upstream.Graph,
        layout: Layout,
        *,
        software: Kernels,
        unused: Sequence[upstream.Variable] = (),
    ) -> LoweredStep:
        """Counts the operations of a processor, which are placed in program order.

        `unused` are trainable variables that this processor does not have.
        """
        placed = [each for each in placed if each.operation not in unused]
        liveness = Liveness(placed, needed, layout, software)
        peaks = liveness.peaks()
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
            _variables(graph, layout, unused),
            Counter(tuple(v.shape.dims) for v in graph.trainable_variables),
            peaks,
            liveness.layer_bytes,
            flops,
            hidden,
            _layer_weights(graph, layout),
        )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters of the whole model."""
        return sum(n * math.prod(dim.size for dim in dims) for dims, n in self.shapes.items())

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
            flops=self.flops + times * (longer.flops - shorter.flops),
            hidden_flops=self.hidden_flops + times * (longer.hidden_flops - shorter.hidden_flops),
            **counted,
        )


def elements_in_use(variable: upstream.Variable, layout: Layout) -> int:
    """Returns the number of a variable's elements that a processor uses."""
    dims = [upstream.Dimension(name_in_use(dim.name), dim.size) for dim in variable.shape.dims]
    return math.prod(layout.slice_size(upstream.Shape(dims)))


def _gradient_elements(variable: upstream.Variable, layout: Layout) -> int:
    if layout.storage.stage >= 2:
        return math.prod(layout.slice_size(variable.shape))
    return elements_in_use(variable, layout)


def _layer_weights(graph: upstream.Graph, layout: Layout) -> int:
    sizes: Counter[str] = Counter()
    for variable in graph.trainable_variables:
        if layer_of(variable.name):
            sizes[layer_of(variable.name)] += elements_in_use(variable, layout)
    return max(sizes.values(), default=0)


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


def _variables(
    graph: upstream.Graph, layout: Layout, unused: Sequence[upstream.Variable]
) -> Counter[str]:
    held: Counter[str] = Counter()
    updated = {v.name for v in graph.trainable_variables}
    without = tuple(f"{variable.name}/" for variable in unused)
    for variable in graph.all_variables:
        if f"{variable.name}/".startswith(without):
            continue
        is_slot = any(variable.name.startswith(f"{name}/") for name in updated)
        purpose = "optimizer" if is_slot and not variable.trainable else "weights"
        # A variable's shape is its shape at rest, as ZeRO shards it.
        held[purpose] += math.prod(layout.slice_size(variable.shape)) * variable.slice_dtype.size
    return held


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
