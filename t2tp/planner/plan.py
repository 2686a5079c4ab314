"""What a training step costs on a cluster: time, memory, traffic, and what bounds it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from t2tp.planner.cluster_file import ClusterFile, SoftwareStack
from t2tp.planner.collective_cost import CollectiveCost, axes_text
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.liveness import WITH_ACTIVATIONS
from t2tp.planner.lowered import LoweredStep
from t2tp.planner.work import BACKWARD, COMPUTE_BOUND, PHASES, PURPOSES, SEND, Memory, Traffic

# Bytes. A plan whose memory is nearer to the limit than this may fit or not.
BORDERLINE = 2 << 30


@dataclass(frozen=True)
class Cost:
    """Seconds of a step by one kind of work.

    Attributes:
      kind: of work, or of a collective with its mesh axes.
      phase: of the step.
      seconds: on the critical path.
      hidden: seconds behind computation.
      count: operations or collectives of a step.
      num_bytes: of collectives: that a processor puts in.
      is_collective: whether it is communication.
      error: seconds by which the constants' spread may change it.
    """

    kind: str
    phase: str
    seconds: float
    hidden: float = 0.0
    count: int = 0
    num_bytes: float = 0.0
    is_collective: bool = False
    error: float = 0.0


@dataclass(frozen=True)
class StagePlan:
    """What a stage of a pipeline has and does.

    Attributes:
      layers: number of its layers.
      forward: seconds of a microbatch's forward pass through all of them.
      backward: seconds of its backward pass.
      idle_share: share of the schedule in which the stage waits.
      memory: bytes at the peak.
    """

    layers: int
    forward: float
    backward: float
    idle_share: float
    memory: float


@dataclass(frozen=True)
class PipelinePlan:
    """The stages of a step.

    Attributes:
      schedule: its name, or the path of its file.
      stages: number of them.
      chunks: of each stage.
      microbatches: of a step.
      idle_share: share of the schedule in which stages wait, of all stages.
      busiest: the stage that the others wait for, whose costs the plan has.
      fullest: the stage whose memory the plan has.
      message_bytes: that a processor sends to a neighbour after a microbatch.
      by_stage: the stages.
    """

    schedule: str
    stages: int
    chunks: int
    microbatches: int
    idle_share: float
    busiest: int
    fullest: int
    message_bytes: int
    by_stage: tuple[StagePlan, ...]


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a training step.

    Attributes:
      title: what is planned.
      cluster: its name, and the stack.
      mesh_shape: of the layout.
      layout: its rules.
      devices: of the mesh.
      tokens: of a step, on the whole mesh.
      parameters: trainable ones of the model.
      seconds: of a step.
      interval: of the seconds, from the spread of the cluster's constants.
      costs: by kind and phase.
      memory: bytes of a device by purpose, at the peak.
      memory_point: where the peak is.
      memory_by_point: the same of each part of a step, at its own peak.
      memory_limit: bytes of a device.
      model_flops: of a step on the whole mesh, with attention counted whole.
      causal_flops: the same without the scores that a causal mask hides.
      recomputed_flops: of a processor, done twice.
      peak: FLOP/s of a device.
      peak_dtype: dtype of that peak.
      bubble: share of the step in which the stage of a pipeline waits that waits least.
      pipeline: its stages; None: there are none.
      price_per_hour: of a device; 0: unknown.
    """

    title: str
    cluster: str
    mesh_shape: str
    layout: str
    devices: int
    tokens: int
    parameters: int
    seconds: float
    interval: tuple[float, float]
    costs: tuple[Cost, ...]
    memory: dict[str, float]
    memory_point: str
    memory_by_point: dict[str, dict[str, float]]
    memory_limit: float
    model_flops: float
    causal_flops: float
    recomputed_flops: float
    peak: float
    peak_dtype: str
    bubble: float = 0.0
    pipeline: PipelinePlan | None = None
    price_per_hour: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def memory_total(self) -> float:
        """Bytes of a device at the peak."""
        return sum(self.memory.values())

    @property
    def fits(self) -> str:
        """Whether the step fits into the devices' memory: `yes`, `no` or `borderline`."""
        if abs(self.memory_limit - self.memory_total) < min(BORDERLINE, self.memory_limit / 20):
            return "borderline"
        return "yes" if self.memory_total <= self.memory_limit else "no"

    @property
    def tokens_per_second(self) -> float:
        """Of all devices."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, attention counted whole (PaLM, arXiv:2204.02311, app. B)."""
        return self.model_flops / (self.seconds * self.devices * self.peak)

    @property
    def causal_mfu(self) -> float:
        """The same with the causal half of attention."""
        return self.causal_flops / (self.seconds * self.devices * self.peak)

    def share(self, *, is_collective: bool) -> float:
        """Returns the share of the step that is computation or exposed communication."""
        seconds = sum(c.seconds for c in self.costs if c.is_collective == is_collective)
        return seconds / self.seconds

    @property
    def hidden_share(self) -> float:
        """Share of the communication that hides behind computation."""
        hidden = sum(c.hidden for c in self.costs)
        exposed = sum(c.seconds for c in self.costs if c.is_collective)
        return hidden / (hidden + exposed) if hidden + exposed else 0.0

    @property
    def bound(self) -> str:
        """What bounds the step, and what to change first."""
        parts: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            parts[_part(cost)] += cost.seconds
        parts["the pipeline's bubble"] = self.bubble * self.seconds
        part = max(parts, key=lambda name: parts[name])
        share = parts[part] / self.seconds if self.seconds else 0.0
        return f"{part} ({share:.0%} of the step): {_ADVICE.get(part.split(' over ')[0], '')}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as one object of JSON."""
        values = asdict(self)
        values["costs"] = [asdict(cost) for cost in self.costs]
        values["memory_total"] = self.memory_total
        return {
            **values,
            "fits": self.fits,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_device": self.tokens_per_second / self.devices,
            "mfu": self.mfu,
            "mfu_causal": self.causal_mfu,
            "mfu_formula": "3 * forward matmul FLOPs / (seconds * devices * peak)",
            "hidden_share": self.hidden_share,
            "bound": self.bound,
        }

    @classmethod
    def from_step(
        cls,
        step: LoweredStep,
        cluster: ClusterFile,
        *,
        title: str,
        tokens: int,
        dtype: str,
    ) -> Plan:
        """Computes the costs of a lowered step.

        Args:
          step: on one processor.
          cluster: on which it runs.
          title: what is planned.
          tokens: of a step, on the whole mesh.
          dtype: of activations, whose peak the MFU is a share of.
        """
        devices = step.layout.size
        costs = [*_compute_costs(step, cluster), *_collective_costs(step, cluster)]
        seconds = sum(cost.seconds for cost in costs)
        by_point = {peak.point: _memory(peak, step, cluster) for peak in step.memory}
        point = max(by_point, key=lambda name: sum(by_point[name].values()))
        recomputed = sum(w.flops * w.times * n for w, n in step.work.items() if w.is_recomputed)
        sharing = cluster.sharing(devices)
        return cls(
            title=title,
            cluster=f"{cluster.name}, stack {cluster.stack}",
            mesh_shape=step.layout.mesh_text,
            layout=step.layout.rules_text,
            devices=devices,
            tokens=tokens,
            parameters=step.parameters,
            seconds=seconds,
            interval=_interval(costs, seconds),
            costs=tuple(sorted(costs, key=lambda c: (PHASES.index(c.phase), -c.seconds))),
            memory=by_point[point],
            memory_point=point,
            memory_by_point=by_point,
            memory_limit=cluster.device.memory / sharing,
            model_flops=3 * step.flops,
            causal_flops=3 * (step.flops - step.hidden_flops),
            recomputed_flops=recomputed,
            peak=cluster.peak(dtype) / sharing,
            peak_dtype=dtype,
            price_per_hour=cluster.price_per_hour,
        )


_ADVICE = {
    "matmuls": "use larger microbatches or fewer ways of tensor parallelism, and recompute less",
    "attention": "split the heads or the length over more devices",
    "memory-bound operations": "split what lies between the blocks too (sequence_parallel)",
    "the update": "split the optimizer's state over more devices",
    "communication": "put that axis nearer (last in the mesh), make it smaller, or send it rarer",
    "the pipeline's bubble": "use more microbatches, or interleave the stages",
}


def _part(cost: Cost) -> str:
    if cost.is_collective:
        return f"communication over {cost.kind.rpartition(' over ')[2]}"
    if cost.kind in ("product", "convolution"):
        return "matmuls"
    if cost.kind.startswith("attention"):
        return "attention"
    return "the update" if cost.kind == "update" else "memory-bound operations"


def _compute_costs(step: LoweredStep, cluster: ClusterFile) -> list[Cost]:
    model = ComputeCost(cluster, step.layout.size)
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    errors: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    for work, number in step.work.items():
        key = (work.kind, work.phase)
        times = number * work.times
        taken = times * model.seconds(work)
        seconds[key] += taken
        errors[key] += taken * model.spread(work)
        counts[key] += times
    return [Cost(*key, seconds[key], count=counts[key], error=abs(errors[key])) for key in seconds]


def _collective_costs(step: LoweredStep, cluster: ClusterFile) -> list[Cost]:
    """Returns the seconds of collectives, of which the stack hides a share behind computation."""
    model = CollectiveCost(cluster, step.layout.mesh_shape)
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for traffic, number in step.traffic.items():
        total = totals[f"{traffic.kind} over {axes_text(traffic.axes)}", traffic.phase]
        times = number * traffic.times
        seconds = times * model.seconds(traffic)
        total[0] += seconds
        total[1] += seconds * hidden_share(traffic, cluster.software)
        total[2] += times
        total[3] += times * traffic.num_bytes
        total[4] += seconds * model.spread(traffic)
    return [
        Cost(kind, phase, seconds - hidden, hidden, round(count), num_bytes, True, abs(error))
        for (kind, phase), (seconds, hidden, count, num_bytes, error) in totals.items()
    ]


def hidden_share(traffic: Traffic, stack: SoftwareStack) -> float:
    """Returns the share of a collective that hides behind computation."""
    if traffic.part == SEND:  # Stages that wait for it are in the schedule.
        return 0.0
    if traffic.of_state:
        return stack.overlap
    is_hidden = traffic.phase == BACKWARD and not traffic.is_recomputed
    return stack.overlap_activations if is_hidden else 0.0


def _memory(peak: Memory, step: LoweredStep, cluster: ClusterFile) -> dict[str, float]:
    """Returns the bytes at one of the step's peaks by purpose."""
    memory = {purpose: 0.0 for purpose in PURPOSES}
    memory |= {purpose: float(size) for purpose, size in step.variables.items()}
    for purpose, size in peak.by_purpose.items():
        memory["gradients" if purpose == "sums" else purpose] += size
    # Gradients are what is large of what collectives carry.
    if peak.point not in WITH_ACTIVATIONS:
        memory["buffers"] = float(
            max((t.num_bytes for t in step.traffic if t.kind == "allreduce"), default=0)
        )
    processes = cluster.processes / step.layout.size if cluster.device.cores else 1
    # Of the devices of a process, those that have no core at the moment hold no temporaries.
    if cluster.device.cores:
        memory["temporary"] *= min(1.0, cluster.device.cores * processes)
    memory["reserved"] = cluster.device.reserved * processes
    return memory


def _interval(costs: list[Cost], seconds: float) -> tuple[float, float]:
    """Adds the errors of matmuls, memory and links, which do not depend on each other."""
    parts: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        kind = "links" if cost.is_collective else "compute"
        if not cost.is_collective and cost.kind not in COMPUTE_BOUND:
            kind = "memory"
        exposed = cost.seconds / (cost.seconds + cost.hidden) if cost.hidden else 1.0
        parts[kind] += exposed * cost.error
    error = math.hypot(*parts.values())
    return (max(0.0, seconds - error), seconds + error)
