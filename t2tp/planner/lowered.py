"""A step lowered for one processor, as counts of work, traffic and memory."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from t2tp import upstream
from t2tp.mesh.layout import Layout
from t2tp.mesh.zero import name_in_use
from t2tp.ops.attention.operation import AttentionOperation
from t2tp.ops.flops import matmul_flops
from t2tp.planner import fusion
from t2tp.planner.cluster_file import SoftwareStack
from t2tp.planner.liveness import Liveness
from t2tp.planner.sequence import Placed, program_order
from t2tp.planner.work import FORWARD, Memory, Traffic, Work
from t2tp.program.abstract_program import AbstractProgram


@dataclasses.dataclass
class LoweredStep:
    """A step on one processor.

    Attributes:
      layout: mesh and rules.
      work: number of operations by their work.
      traffic: number of collectives by their traffic.
      variables: bytes of a processor by purpose: `weights` and `optimizer`.
      shapes: number of the model's trainable variables by their dimensions.
      memory: the peaks of the parts of the step, without variables.
      layer_bytes: see `Liveness`.
      flops: FLOPs of the forward pass's matmuls on the whole mesh, as `matmul_flops` counts them.
      hidden_flops: FLOPs of scores that a causal mask hides.
      layer_weights: number of weights of a further layer that a processor uses; 0 without one.
    """

    layout: Layout
    work: Counter[Work]
    traffic: Counter[Traffic]
    variables: Counter[str]
    shapes: Counter[tuple[upstream.Dimension, ...]]
    memory: list[Memory]
    layer_bytes: Counter[str]
    flops: float
    hidden_flops: float
    layer_weights: int = 0

    @classmethod
    def from_program(
        cls,
        program: AbstractProgram,
        *,
        software: SoftwareStack = SoftwareStack(attention="engine", fuses=False),  # noqa: B008  (immutable)
    ) -> LoweredStep:
        """Lowers a program.

        Args:
          program: program of a training step.
          software: the tensors that kernels save, and whether they fuse element-wise operations.
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
        software: SoftwareStack,
    ) -> LoweredStep:
        """Counts the operations of a processor.

        Args:
          placed: in program order.
          needed: outputs of the program.
          graph: that they are of.
          layout: mesh and rules.
          software: see `from_program`.
        """
        liveness = Liveness(placed, needed, layout, software)
        flops, hidden = _model_flops(placed)
        return cls(
            layout,
            Counter(fusion.works(placed, needed, layout, fuses=software.fuses)),
            Counter(_traffic(placed)),
            _variables(graph, layout),
            Counter(tuple(v.shape.dims) for v in graph.trainable_variables),
            liveness.peaks(),
            liveness.layer_bytes,
            flops,
            hidden,
        )

    @property
    def parameters(self) -> int:
        """Number of trainable parameters of the whole model."""
        return sum(n * math.prod(dim.size for dim in dims) for dims, n in self.shapes.items())

    def extended(self, longer: LoweredStep, shorter: LoweredStep, times: int) -> LoweredStep:
        """Returns the step with more layers: `times` the difference of two steps is added."""
        layers = _difference(longer.layer_bytes, shorter.layer_bytes)
        memory = []
        for peak in self.memory:
            by_purpose = dict(peak.by_purpose)
            for purpose in (*peak.layers, "sums"):
                by_purpose[purpose] = by_purpose.get(purpose, 0) + times * layers[purpose]
            memory.append(Memory(peak.point, peak.layers, by_purpose))

        def added(name: str) -> Counter:
            mine, long, short = (getattr(step, name) for step in (self, longer, shorter))
            # Sums that only one of the two reduces together with others have negative counts.
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
            layer_weights=self._in_use(_difference(longer.shapes, shorter.shapes)),
            **counted,
        )

    def _in_use(self, shapes: Counter[tuple[upstream.Dimension, ...]]) -> int:
        """Returns the number of weights of these shapes that a processor uses."""
        total = 0
        for dims, number in shapes.items():
            in_use = [upstream.Dimension(name_in_use(dim.name), dim.size) for dim in dims]
            total += number * math.prod(self.layout.slice_size(upstream.Shape(in_use)))
        return total


def _difference(longer: Counter, shorter: Counter) -> Counter:
    return Counter({key: longer[key] - shorter[key] for key in {**longer, **shorter}})


def _traffic(placed: Sequence[Placed]) -> list[Traffic]:
    return [
        Traffic(c.kind, c.axes, p.phase, c.times, c.bytes, p.is_of_state, p.is_recomputed, p.part)
        for p in placed
        for c in p.collectives
    ]


def _variables(graph: upstream.Graph, layout: Layout) -> Counter[str]:
    held: Counter[str] = Counter()
    updated = {v.name for v in graph.trainable_variables}
    for variable in graph.all_variables:
        is_slot = any(variable.name.startswith(f"{name}/") for name in updated)
        purpose = "optimizer" if is_slot and not variable.trainable else "weights"
        # The shape of a variable is that at rest.
        held[purpose] += math.prod(layout.slice_size(variable.shape)) * variable.slice_dtype.size
    return held


def _model_flops(placed: Sequence[Placed]) -> tuple[float, float]:
    """Returns the FLOPs of the forward pass, and the part of them for masked scores."""
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
