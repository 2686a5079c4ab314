"""Plans a step whose layers are in pipeline stages."""

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.stages import LAYERS
from t2tp.pipeline.assign_layers import assign_layers, check_layers_match
from t2tp.pipeline.schedule import Action
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.depth import period
from t2tp.planner.overlap import hidden_seconds
from t2tp.planner.plan import PipelinePlan, Plan, StagePlan
from t2tp.planner.stages.steps import StageLowering
from t2tp.step.lowered import LoweredStep
from t2tp.step.memory import Memory
from t2tp.step.order import FIRST, LAST, MIDDLE
from t2tp.step.work import BACKWARD, FORWARD, SEND, UPDATE, Traffic, Work


@dataclass(frozen=True)
class Chunk:
    """A chunk of a stage's layers.

    Attributes:
      place: `first` if the model's beginning comes before the layers, `last` if the loss comes
        after them, otherwise `middle`.
      stack: index of the stack of its layers.
      layers: number of layers.
    """

    place: str
    stack: int
    layers: int


class StagedStep:
    """A step whose layers are in stages.

    Attributes:
      layout: the whole mesh's layout.
      stages: the chunks of each stage.
    """

    def __init__(self, hparams: HParams, lowering: StageLowering) -> None:
        """Assigns the layers of `hparams` to stages, which `lowering` lowers.

        Raises:
          LayoutError: the layers cannot be divided among the stages.
        """
        self.lowering = lowering
        self.layout, self.table = lowering.layout, lowering.table
        layout, stacks = lowering.layout, lowering.stacks
        assigned = []
        for count in stacks.values():
            ranges = assign_layers(count, layout)
            # All stages run one program: their layers have the same kinds in the same order.
            check_layers_match(ranges, [layer % period(hparams) for layer in range(count)])
            assigned.append(ranges)
        end = len(stacks) - 1, layout.pipeline.chunks - 1
        self.stages = [
            [
                Chunk(self.place(stage, c == 0, (stack, c) == end), stack, len(numbers[stage]))
                for stack, ranges in enumerate(assigned)
                for c, numbers in enumerate(ranges)
            ]
            for stage in range(layout.num_stages)
        ]

    def place(self, stage: int, has_beginning: bool = True, has_end: bool = True) -> str:
        """Returns the place of a stage or of one of its chunks: `first`, `middle` or `last`.

        `has_beginning`: whether the chunk is the first of its stack; `has_end`: whether it is the
        last chunk of the last stack.
        """
        if stage == 0 and has_beginning:
            return FIRST
        return LAST if stage == self.layout.num_stages - 1 and has_end else MIDDLE

    def layers(self, stage: int) -> list[int]:
        """Returns the number of layers of each stack in a stage."""
        counts = [0] * len(self.lowering.stacks)
        for chunk in self.stages[stage]:
            counts[chunk.stack] += chunk.layers
        return counts

    def entries(self, chunk: Chunk, action: str) -> tuple[dict[Work, float], dict[Traffic, float]]:
        """Returns a processor's work and traffic in a pass of a chunk.

        The action `F` is the forward pass, `B` the backward pass, and `W` the gradients of weights.
        """
        # All stacks get the number of this chunk's layers: only the chunk's own entries are read.
        layers = [chunk.layers] * len(self.lowering.stacks)
        step = self.lowering.of(*layers).by_place[chunk.place]
        part = f"{action}{chunk.stack}"

        def of_part(counts: Mapping[Any, float]) -> dict[Any, float]:
            # The schedule, not the lowered program, says how often an entry runs.
            return {dataclasses.replace(x, times=1): n for x, n in counts.items() if x.part == part}

        return of_part(step.work), of_part(step.traffic)

    @functools.cached_property
    def model_flops(self) -> tuple[float, float]:
        """Forward FLOPs of all stages, and the part of these FLOPs for masked attention scores."""
        steps = self.lowering.of(*self.lowering.stacks.values()).by_place
        first, middle, last = (steps[place] for place in (FIRST, MIDDLE, LAST))
        more = self.table.microbatches / self.lowering.microbatches
        return (
            more * (first.flops + last.flops - middle.flops),
            more * (first.hidden_flops + last.hidden_flops - middle.hidden_flops),
        )

    def of_stage(self, stage: int, sends: Sequence[tuple[Traffic, int]] = ()) -> LoweredStep:
        """Returns a stage's step; `sends` has the messages it sends, with the number of each."""
        outside = self.lowering.of(*self.layers(stage)).by_place[self.place(stage)]
        # The lowered program's messages are left out: `sends` has those of the real schedule.
        work = defaultdict(float, {w: n for w, n in outside.work.items() if not w.part})
        outer = {t: n for t, n in outside.traffic.items() if not t.part and t.kind != "permute"}
        traffic = defaultdict(float, outer)
        for chunk, action in itertools.product(self.stages[stage], Action):
            own_work, own_traffic = self.entries(chunk, action.value)
            for w, n in own_work.items():
                work[dataclasses.replace(w, times=self.table.microbatches, part="")] += n
            for t, n in own_traffic.items():
                traffic[dataclasses.replace(t, times=self.table.microbatches, part="")] += n
        for message, count in sends:
            traffic[dataclasses.replace(message, times=count)] += 1
        flops, hidden_flops = self.model_flops
        return dataclasses.replace(
            outside,
            layout=self.layout,
            work=work,
            traffic=traffic,
            shapes=self.lowering.of(*self.lowering.stacks.values()).by_place[FIRST].shapes,
            flops=flops,
            hidden_flops=hidden_flops,
            memory=[self._peak(peak, stage) for peak in outside.memory],
        )

    @functools.cached_property
    def _kept_at_most(self) -> list[float]:
        """Max bytes of the activations that each stage saves at the same time."""
        return self.table.kept(
            [[self._kept_bytes(chunk) for chunk in chunks] for chunks in self.stages]
        )

    def _kept_bytes(self, chunk: Chunk) -> float:
        """Returns the bytes of the activations that a chunk saves per microbatch.

        The chunk before the loss also saves the output of its layers.
        """
        layers = [chunk.layers] * len(self.lowering.stacks)
        steps = self.lowering.of(*layers)
        results = steps.results[chunk.stack] if chunk.place == LAST else 0
        return steps.kept[chunk.stack] + results

    def _peak(self, peak: Memory, stage: int) -> Memory:
        """Returns `peak` with the activations that the stage saves for other microbatches."""
        if peak.point == UPDATE:  # All microbatches have ended.
            return peak
        by_purpose = dict(peak.by_purpose)
        by_purpose["kept"] = by_purpose.get("kept", 0.0) + self.kept_of_others(stage)
        return dataclasses.replace(peak, by_purpose=by_purpose)

    def kept_of_others(self, stage: int) -> float:
        """Returns the max bytes that a stage saves for microbatches other than the current one."""
        own = sum(self._kept_bytes(chunk) for chunk in self.stages[stage])
        return max(0.0, self._kept_at_most[stage] - own)

    def message(self, chunk: int, phase: str) -> Traffic:
        """Returns the message that a processor sends to a neighbor after a chunk's layers."""
        stack = chunk // self.layout.pipeline.chunks
        layers = [1] * len(self.lowering.stacks)  # More layers do not change the message.
        size = self.lowering.of(*layers).messages[stack]
        axes = tuple(axis.name for axis in self.layout.axes_of(LAYERS))
        return Traffic("permute", axes, phase, 1, size, False, part=SEND)


def staged_plan(step: StagedStep, cluster: ClusterFile, *details: Any) -> Plan:
    """Predicts the cost of a step with stages; arguments and `details` as for `Plan.from_step`.

    The plan's time is the time of the whole pipeline. Its other costs are the busiest stage's, and
    its memory is the fullest stage's.
    """
    layout, table = step.layout, step.table
    collective = CollectiveCost(cluster, layout.mesh_shape)
    entries = _entry_seconds(step, cluster, collective)
    messages = [step.message(chunk, FORWARD) for chunk in range(table.chunks)]
    timing = table.run(entries, [collective.seconds(each) for each in messages])

    def plan_of(stage: int) -> Plan:
        sends = [
            (step.message(chunk, FORWARD if action is Action.FORWARD else BACKWARD), count)
            for (action, chunk), count in timing.sends[stage].items()
        ]
        return Plan.from_step(step.of_stage(stage, sends), cluster, *details)

    def pass_seconds(stage: int, action: Action) -> float:
        return sum(entries[stage][action, chunk] for chunk in range(table.chunks))

    # Stages with the same place and the same chunks are of one kind. The first stage of each kind
    # is planned, because it saves the most activations. The busiest stage is planned too.
    kinds = [(step.place(stage), *chunks) for stage, chunks in enumerate(step.stages)]
    alike = [kinds.index(kind) for kind in kinds]
    busiest = max(range(table.stages), key=lambda stage: timing.busy[stage])
    plans = {stage: plan_of(stage) for stage in sorted({*alike, busiest})}
    fullest = max(plans, key=lambda stage: plans[stage].memory_total)
    chosen, worst = plans[busiest], plans[fullest]
    # Seconds of the work before and after the loop, such as the update. The slowest stage counts.
    outside = max(plan.seconds - timing.busy[stage] for stage, plan in plans.items())
    total = timing.seconds + outside
    # Idle time is as uncertain as the work that the other stages wait for.
    scale = total / chosen.seconds
    low, high = chosen.interval
    pipeline = PipelinePlan(
        schedule=table.name,
        stages=table.stages,
        chunks=layout.pipeline.chunks,
        microbatches=table.microbatches,
        idle_share=timing.idle_share,
        busiest=busiest,
        fullest=fullest,
        message_bytes=messages[0].num_bytes,
        by_stage=tuple(
            StagePlan(
                sum(step.layers(stage)),
                pass_seconds(stage, Action.FORWARD),
                pass_seconds(stage, Action.BACKWARD) + pass_seconds(stage, Action.WEIGHTS),
                1 - timing.busy[stage] / timing.seconds,
                _memory_of(plans[like], step.kept_of_others(like) - step.kept_of_others(stage)),
            )
            for stage, like in enumerate(alike)
        ),
    )
    return dataclasses.replace(
        chosen,
        seconds=total,
        interval=(low * scale, high * scale),
        memory=worst.memory,
        memory_point=f"{worst.memory_point}, stage {fullest}",
        memory_by_point=worst.memory_by_point,
        warnings=worst.warnings,
        bubble=max(0.0, 1 - chosen.seconds / total),
        pipeline=pipeline,
    )


def _entry_seconds(
    step: StagedStep, cluster: ClusterFile, collective: CollectiveCost
) -> list[dict[tuple[Action, int], float]]:
    """Returns the seconds of each action on each chunk, by stage."""
    compute = ComputeCost(cluster, step.layout.size)

    # Most stages have equal chunks.
    @functools.cache
    def seconds(chunk: Chunk, action: Action) -> float:
        work, traffic = step.entries(chunk, action.value)
        compute_seconds = {w: n * compute.seconds(w) for w, n in work.items()}
        sent = {t: n * collective.seconds(t) for t, n in traffic.items()}
        # An entry's collectives overlap with the entry's own work only.
        hidden = hidden_seconds(sent, compute_seconds, cluster.software)
        return sum(compute_seconds.values()) + sum(sent.values()) - sum(hidden.values())

    return [
        {
            (action, number): seconds(chunk, action)
            for number, chunk in enumerate(chunks)
            for action in Action
        }
        for chunks in step.stages
    ]


def _memory_of(alike: Plan, less: float) -> float:
    """Returns the peak memory of a stage that saves `less` bytes than a stage of the same kind."""
    return max(
        sum(memory.values()) - (0.0 if point == UPDATE else less)
        for point, memory in alike.memory_by_point.items()
    )
