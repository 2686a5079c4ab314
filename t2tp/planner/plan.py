"""The predicted cost of a training step on a cluster: time, memory, traffic, and its bottleneck."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.overlap import hidden_seconds
from t2tp.report.units import size
from t2tp.step.lifetimes import WITH_ACTIVATIONS
from t2tp.step.lowered import LoweredStep
from t2tp.step.memory import fits, with_fragmentation
from t2tp.step.work import ATTENTION, COMPUTE_BOUND, FORWARD, PHASES, UPDATE

# The bottlenecks of a step; communication also names its mesh axes.
MATMULS, MEMORY, BUBBLE = "matmuls", "memory-bound operations", "the pipeline's bubble"
HOST = "launches by the host"
OPTIMIZER, COMMUNICATION = "the optimizer's update", "communication"

_BFLOAT16, _FLOAT32 = 2, 4  # Bytes.


@dataclass(frozen=True)
class Cost:
    """The seconds of a step that one kind of work takes.

    Attributes:
      kind: kind of work, or a collective and its mesh axes, such as `allreduce over data`.
      seconds: seconds on the critical path.
      hidden: seconds of communication that overlap with computation.
      num_bytes: bytes that a processor sends.
      is_collective: whether the work is communication.
    """

    kind: str
    phase: str
    seconds: float
    hidden: float = 0.0
    count: int = 0
    num_bytes: float = 0.0
    is_collective: bool = False

    @property
    def bottleneck(self) -> str:
        """The bottleneck that this cost belongs to."""
        if self.is_collective:
            return f"{COMMUNICATION} over {self.kind.rpartition(' over ')[2]}"
        if self.kind.startswith(ATTENTION):
            return ATTENTION
        if self.kind in COMPUTE_BOUND:
            return MATMULS
        if self.kind == HOST:
            return HOST
        return OPTIMIZER if self.phase == UPDATE else MEMORY


@dataclass(frozen=True)
class StagePlan:
    """The cost of one pipeline stage.

    Attributes:
      forward, backward: seconds of a microbatch's passes.
      idle_share: fraction of the schedule in which this stage is idle.
      memory: bytes at the peak.
    """

    layers: int
    forward: float
    backward: float
    idle_share: float
    memory: float


@dataclass(frozen=True)
class PipelinePlan:
    """The cost of the pipeline stages.

    Attributes:
      schedule: name of the schedule, or path of its file.
      chunks: number of chunks of a stage: the pieces into which its layers are divided.
      idle_share: idle fraction of the time of all stages together.
      busiest: index of the stage with the most work. The plan shows its costs.
      fullest: index of the stage with the most memory. The plan shows its memory.
      message_bytes: bytes that a processor sends to a neighbor after a microbatch.
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
      cluster: name of the cluster and the stack.
      devices: size of the mesh.
      tokens: tokens of a step on the whole mesh.
      interval: low and high estimate of the seconds, by the planner's error on published steps.
      costs: seconds by kind and phase.
      memory: bytes of a device by purpose, at the peak of the step.
      memory_point: the part of the step in which this peak occurs.
      memory_by_point: bytes by purpose at the peak of each part of the step.
      memory_limit: bytes of a device's memory.
      headroom: share of these bytes that must stay free.
      model_flops: FLOPs of a step on the whole mesh, with all scores of attention.
      causal_flops: FLOPs without the scores that a causal mask hides.
      peak: FLOP/s of a device.
      peak_dtype: dtype at which the device reaches this peak.
      bubble: idle fraction of the busiest pipeline stage.
      price_per_hour: price of a device; 0: unknown.
      warnings: what may make the step slower than planned, one sentence each.
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
    headroom: float
    model_flops: float
    causal_flops: float
    peak: float
    peak_dtype: str
    bubble: float = 0.0
    pipeline: PipelinePlan | None = None
    price_per_hour: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def memory_total(self) -> float:
        """Bytes of a device at the peak."""
        return sum(self.memory.values())

    @property
    def fits(self) -> str:
        """Whether a device has enough memory: `yes`, `borderline` (in the headroom) or `no`."""
        return fits(self.memory_total, self.memory_limit, self.headroom)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization with all scores (PaLM, arXiv:2204.02311, appendix B)."""
        return self.model_flops / (self.seconds * self.devices * self.peak)

    @property
    def causal_mfu(self) -> float:
        """Model FLOPs utilization without the scores that a causal mask hides."""
        return self.causal_flops / (self.seconds * self.devices * self.peak)

    def share(self, *, is_collective: bool) -> float:
        """Returns a fraction of the step.

        With `is_collective` it is the fraction of exposed communication, otherwise of computation.
        """
        return sum(c.seconds for c in self.costs if c.is_collective == is_collective) / self.seconds

    @property
    def hidden_share(self) -> float:
        """Fraction of the communication that overlaps with computation."""
        hidden = sum(c.hidden for c in self.costs)
        exposed = sum(c.seconds for c in self.costs if c.is_collective)
        return hidden / (hidden + exposed) if hidden + exposed else 0.0

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of the step by bottleneck."""
        parts = defaultdict(float, {BUBBLE: self.bubble * self.seconds})
        for cost in self.costs:
            parts[cost.bottleneck] += cost.seconds
        return parts

    @property
    def bottleneck(self) -> tuple[str, float]:
        """The part of the step that takes longest, and its fraction of the step."""
        part, seconds = max(self.parts.items(), key=lambda part: part[1])
        return part, seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as a JSON object."""
        part, share = self.bottleneck
        return {
            **asdict(self),
            "memory_total": self.memory_total,
            "fits": self.fits,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_device": self.tokens_per_second / self.devices,
            "mfu": self.mfu,
            "mfu_causal": self.causal_mfu,
            "hidden_share": self.hidden_share,
            "bottleneck": {"part": part, "share": share},
        }

    @classmethod
    def from_step(
        cls, step: LoweredStep, cluster: ClusterFile, title: str, tokens: int, dtype: str
    ) -> Plan:
        """Computes the costs of a lowered step.

        `tokens` are the tokens of a step on the whole mesh. The dtype of the activations, `dtype`,
        selects the peak.
        """
        devices, sharing = step.layout.size, cluster.sharing(step.layout.size)
        limit = cluster.device.memory / sharing
        by_point = {
            point: _memory(point, memory, step, cluster)
            for point, memory in step.memory_by_point().items()
        }
        point = max(by_point, key=lambda name: sum(by_point[name].values()))
        costs = _costs(step, cluster)
        seconds = sum(cost.seconds for cost in costs)
        error = cluster.software.error
        return cls(
            title=title,
            cluster=f"{cluster.name}, stack {cluster.stack}",
            mesh_shape=step.layout.mesh_text,
            layout=step.layout.rules_text,
            devices=devices,
            tokens=tokens,
            parameters=step.parameters,
            seconds=seconds,
            interval=((1 - error) * seconds, (1 + error) * seconds),
            costs=tuple(sorted(costs, key=lambda c: (PHASES.index(c.phase), -c.seconds))),
            memory=by_point[point],
            memory_point=point,
            memory_by_point=by_point,
            memory_limit=limit,
            headroom=cluster.headroom,
            model_flops=3 * step.flops,
            causal_flops=3 * (step.flops - step.hidden_flops),
            peak=cluster.peak(dtype) / sharing,
            peak_dtype=dtype,
            price_per_hour=cluster.price_per_hour,
            warnings=tuple(_warnings(step, cluster, limit - sum(by_point[point].values()), dtype)),
        )


def _costs(step: LoweredStep, cluster: ClusterFile) -> list[Cost]:
    """Returns the seconds of operations and collectives by kind and phase."""
    compute = ComputeCost(cluster, step.layout.size)
    collective = CollectiveCost(cluster, step.layout.mesh_shape)
    # Counts may be fractions (see `LoweredStep.work`), but a processor executes whole operations.
    counts = {w: math.ceil(round(n, 6)) * w.times for w, n in step.work.items()}
    sends = {t: math.ceil(round(n, 6)) * t.times for t, n in step.traffic.items()}
    work = {w: n * compute.seconds(w) for w, n in counts.items()}
    traffic = {t: n * collective.seconds(t) for t, n in sends.items()}
    hidden = hidden_seconds(traffic, work, cluster.software)
    # (kind, phase, is collective) -> exposed seconds, hidden seconds, executions, sent bytes.
    totals: dict[tuple[str, str, bool], np.ndarray] = defaultdict(lambda: np.zeros(4))
    launch = cluster.software.host * step.arguments / cluster.steps_per_launch
    if launch:
        totals[HOST, FORWARD, False] += (launch, 0.0, 1, 0.0)
    for w, seconds in work.items():
        totals[w.kind, w.phase, False] += (seconds, 0.0, counts[w], 0.0)
    for t, seconds in traffic.items():
        sent, covered = sends[t] * collective.sent_bytes(t), hidden.get(t, 0.0)
        key = f"{t.kind} over {' and '.join(t.axes)}", t.phase, True
        totals[key] += (seconds - covered, covered, sends[t], sent)
    costs = []
    for (kind, phase, is_collective), total in totals.items():
        seconds, covered, count, sent = total.tolist()
        costs.append(Cost(kind, phase, seconds, covered, round(count), sent, is_collective))
    return costs


def _warnings(step: LoweredStep, cluster: ClusterFile, room: float, dtype: str) -> Iterator[str]:
    """Yields what may make the step slower than planned; `room` are the free bytes of a device."""
    used, peak = cluster.peak_dtype(dtype), cluster.peak(dtype)
    if used != dtype:
        yield f"{cluster.name} has no peak for {dtype}: planned with {used}'s"
    faster = cluster.device.peak.get("bfloat16", 0.0) / peak
    if dtype == "float32" and faster > 1:
        yield (
            f"in float32: bfloat16 has {faster:.3g} times the peak and needs less memory"
            " (--hparams=activation_dtype=bfloat16)"
        )
    needed = cluster.software.cached_layers * _BFLOAT16 * step.layer_weights
    gathers = any(t.kind == "allgather" and t.of_state for t in step.traffic)
    if 0 <= room < needed and gathers and step.layout.storage.stage == 3:
        yield (
            f"PyTorch's allocator may wait and retry: the free memory, {size(room)}, holds the"
            f" weights of fewer than {cluster.software.cached_layers:g} layers ({size(needed)})"
        )


def _memory(
    point: str, memory: dict[str, float], step: LoweredStep, cluster: ClusterFile
) -> dict[str, float]:
    """Adds what the software and the device need to the bytes of a step by purpose."""
    layer, stack = float(step.layer_weights), cluster.software
    # Matmuls add gradients to the permanent buffers, and autograd gets a dummy gradient in 16 bits.
    if stack.keeps_buffers:
        memory["gradients"] += _BFLOAT16 * layer
    if step.layout.storage.stage == 3:
        memory["buffers"] += _BFLOAT16 * stack.unsharded_layers * layer
        if point not in WITH_ACTIVATIONS and stack.unsharded_layers:
            memory["buffers"] += (_BFLOAT16 + _FLOAT32) * layer
    processes = cluster.processes / step.layout.size if cluster.device.cores else 1
    # Virtual devices share cores. A device that waits for a core holds no temporaries.
    if cluster.device.cores:
        memory["temporary"] *= min(1.0, cluster.device.cores * processes)
    memory["reserved"] = cluster.device.reserved * processes
    return with_fragmentation(memory, stack)
