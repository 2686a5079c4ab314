"""The meshes, layouts and hparams that a search chooses from."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.pipeline import LAYERS
from t2tp.planner.depth import depths, period

# A dimension that tensor parallelism splits -> the hparam with its size.
_TENSOR_PARALLEL = {"heads": "num_heads", "d_ff": "d_ff", "vocab": ""}
_MOST_MICROBATCHES = 1024
_MOST_CHUNKS = 8
# Places for layers, over layers: with more, stages would wait for the ones with a layer more.
_MOST_UNEVEN = 1.15
# `gpipe` takes as long as `1f1b`, and more memory.
_SCHEDULES = ("1f1b", "interleaved", "zero_bubble")


@dataclass(frozen=True)
class Candidate:
    """A way to train a model on some devices.

    Attributes:
      data: processors that split the batch.
      model: processors that split heads, hidden layers and vocabulary.
      microbatches: per step.
      recompute: `none` or `layer`.
      zero_stage: 0 to 3.
      sequence_parallel: whether `model` also splits what lies between the blocks.
      expert: processors among those of `data` that split the experts, too.
      stages: that split the layers.
      schedule: of the stages.
      chunks: of the layers of each stage.
      order: the axes of the mesh, the last one nearest.
    """

    data: int
    model: int
    microbatches: int
    recompute: str
    zero_stage: int
    sequence_parallel: bool
    expert: int = 1
    stages: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    # What communicates most is last.
    order: tuple[str, ...] = ("stage", "data", "expert", "model")

    @functools.cached_property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh in their order."""
        sizes = {
            "stage": self.stages,
            "data": self.data // self.expert,
            "expert": self.expert,
            "model": self.model,
        }
        return {name: sizes[name] for name in self.order if sizes[name] > 1}

    @functools.cached_property
    def mesh_shape(self) -> str:
        """The mesh."""
        return ";".join(f"{name}:{size}" for name, size in self.axes.items())

    @property
    def layout(self) -> str:
        """The rules."""
        batch = [name for name in ("data", "expert") if name in self.axes]
        rules = [f"{LAYERS}:stage"] if self.stages > 1 else []
        if batch:
            rules.append(f"batch:{'+'.join(batch)}")
        if self.expert > 1:
            rules.append("experts:expert")
        if self.model > 1:
            rules += [f"{dim}:model" for dim in _TENSOR_PARALLEL]
            if self.sequence_parallel:
                rules.append("residual_length:model")
        return ";".join(rules)

    def hparams(self) -> dict[str, Any]:
        """Returns the hparams that differ between candidates, by name."""
        values = {
            "mesh_shape": self.mesh_shape,
            "layout": self.layout,
            "microbatches": self.microbatches,
            "recompute": self.recompute,
            "zero_stage": self.zero_stage,
            "sequence_parallel": self.sequence_parallel,
        }
        if self.stages > 1:
            values |= {"pipeline_schedule": self.schedule, "pipeline_chunks": self.chunks}
        return values

    def applied(self, hparams: HParams) -> HParams:
        """Returns hparams with those of the candidate."""
        changed = hparams.copy()
        for name, value in self.hparams().items():
            if name in changed:
                changed.set(name, value)
        return changed

    def flags(self) -> str:
        """Returns the flags of the trainer that select it."""
        values = self.hparams()
        mesh, layout = values.pop("mesh_shape"), values.pop("layout")
        text = ",".join(f"{name}={str(value).lower()}" for name, value in values.items())
        return f"--mesh_shape='{mesh}' --layout='{layout}' --hparams={text}"

    def program(self) -> Candidate:
        """Returns a candidate with the same program, but for the table of the stages' schedule."""
        splits_backward = self.schedule == "zero_bubble"
        return dataclasses.replace(
            self, schedule="zero_bubble" if splits_backward else "1f1b", chunks=1
        )

    def permuted(self) -> Iterator[Candidate]:
        """Yields it with its axes in each order over the levels of the cluster."""
        for order in itertools.permutations(self.axes):
            yield dataclasses.replace(self, order=order)


def candidates(
    hparams: HParams,
    devices: int,
    rows: int,
    max_tensor_parallel: int,
    fixed: Mapping[str, Any],
) -> Iterator[Candidate]:
    """Yields the candidates for a number of devices, their axes in one order.

    Args:
      hparams: of the model.
      devices: of the mesh.
      rows: of the global batch.
      max_tensor_parallel: max size of the axis `model`.
      fixed: hparams that are not to be chosen, by name.
    """
    heads = hparams.get("num_kv_heads") or hparams.get("num_heads") if "num_heads" in hparams else 1
    experts = hparams.get("num_experts") if "num_experts" in hparams else 1
    for model in _divisors(math.gcd(devices, heads)):
        if model > max_tensor_parallel:
            continue
        for stages in _divisors(devices // model):
            data = devices // model // stages
            if rows % data:
                continue
            chosen = {
                "microbatches": _microbatches(rows // data),
                "recompute": ("none", "layer") if "recompute" in hparams else ("none",),
                "zero_stage": (0, 1, 2, 3) if data > 1 else (0,),
                "sequence_parallel": _sequence_parallel(hparams, model),
            }
            options = [_free(name, values, fixed) for name, values in chosen.items()]
            schedules = list(_schedules(hparams, stages, fixed))
            of_data = _divisors(math.gcd(experts, data)) if experts > 1 else [1]
            for expert, (schedule, chunks), (microbatches, *others) in itertools.product(
                of_data, schedules, itertools.product(*options)
            ):
                # The order of two chunks is that of whole groups of microbatches.
                if chunks > 1 and microbatches % stages:
                    continue
                recompute, zero_stage, is_split = others
                yield Candidate(
                    data,
                    model,
                    microbatches,
                    recompute,
                    zero_stage,
                    is_split,
                    expert,
                    stages,
                    schedule,
                    chunks,
                )


def _free(name: str, values: Sequence[Any], fixed: Mapping[str, Any]) -> Sequence[Any]:
    """Returns the values of a hparam, or of these the one that is fixed."""
    return [each for each in values if each == fixed[name]] if name in fixed else values


def _microbatches(rows: int) -> list[int]:
    """Returns how many microbatches the rows of a processor can be."""
    return [n for n in _divisors(rows) if n <= _MOST_MICROBATCHES]


def _schedules(
    hparams: HParams, stages: int, fixed: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
    """Yields schedules and numbers of chunks that deal all layers out to so many stages."""
    if stages == 1:
        yield "1f1b", 1
        return
    counts = depths(hparams)
    if not counts or "pipeline_schedule" not in hparams:
        return
    for schedule in _free("pipeline_schedule", _SCHEDULES, fixed):
        several = range(2, _MOST_CHUNKS + 1) if schedule == "interleaved" else (1,)
        for chunks in _free("pipeline_chunks", several, fixed):
            if all(_can_be_dealt(n, stages * chunks, period(hparams)) for n in counts.values()):
                yield schedule, chunks


def _can_be_dealt(layers: int, places: int, period: int) -> bool:
    """Whether places have layers of the same kinds, and nearly as many."""
    if layers % (places * period) == 0:
        return True
    return (
        period == 1
        and places <= layers
        and -(-layers // places) * places <= (_MOST_UNEVEN * layers)
    )


def _sequence_parallel(hparams: HParams, model: int) -> tuple[bool, ...]:
    is_possible = "sequence_parallel" in hparams and hparams.get("max_length") % model == 0
    return (False, True) if model > 1 and is_possible else (False,)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
