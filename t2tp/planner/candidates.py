"""The candidates of a search: meshes, layouts and the hparams that go with them.

A mesh has up to four axes, and each axis has one use:

    stage   splits the layers of the model into pipeline stages
    data    splits the batch
    expert  splits the batch, and the experts of a mixture of experts
    model   splits the weights of each layer (tensor parallelism): heads, hidden layers, vocabulary

The candidates for 4 devices and a model of 2 heads are `data:4`, `data:2;model:2`,
`stage:2;data:2`, `stage:2;model:2` and `stage:4`, each with every number of microbatches, ZeRO
stage, kind of recomputation and pipeline schedule that the mesh allows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.dimensions import EXPERTS, VOCAB, declared, names_with
from t2tp.mesh.stages import LAYERS
from t2tp.pipeline.schedules import lowered_schedule, pipeline_schedule, searched_schedules
from t2tp.planner.depth import depths, period

# The dimensions that tensor parallelism must split, and those that it splits if possible. A padded
# dimension can always be split.
_MUST_SPLIT = names_with(lambda dim: dim.model_axis == "must")
_MAY_SPLIT = names_with(lambda dim: dim.model_axis == "may")
_MOST_MICROBATCHES = 1024
# The max ratio of (stages x layers of the largest stage) to all layers. With a higher ratio, other
# stages would wait too long.
_MOST_UNEVEN = 1.15
# CHOSEN: the hparams that a search chooses. RESET: hparams that could contradict the chosen mesh,
# with the values that leave the choice to the engine.
CHOSEN = (
    "microbatches",
    "pipeline_chunks",
    "pipeline_schedule",
    "recompute",
    "sequence_parallel",
    "zero_stage",
)
RESET = {"pipeline_layers": "", "zero_axes": "", "storage_layout": ""}

_AXES = ("stage", "data", "expert", "model")

# Dimension of a weight -> its sizes.
Sizes = Mapping[str, set[int]]


@dataclass(frozen=True)
class Candidate:
    """A way to train a model on some devices.

    Attributes:
      data: number of processors that split the batch.
      model: number of processors that split each layer.
      recompute: `none` or `layer`.
      zero_stage: 0 to 3.
      sequence_parallel: whether `model` also splits the residual stream, along its length.
      expert: number of processors that split the experts; `data` is a multiple of it.
      chunks: number of pieces into which the layers of a stage are divided.
      split: the dimensions that `model` splits.
      order: the axes of the mesh; the members of the last axis are nearest to each other.
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
    split: tuple[str, ...] = (*_MUST_SPLIT, VOCAB)
    # Tensor parallelism communicates most, so its axis has the nearest members.
    order: tuple[str, ...] = _AXES

    @functools.cached_property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh in their order."""
        numbers = (self.stages, self.data // self.expert, self.expert, self.model)
        sizes = dict(zip(_AXES, numbers, strict=True))
        return {name: sizes[name] for name in self.order if sizes[name] > 1}

    @functools.cached_property
    def mesh_shape(self) -> str:
        """The mesh."""
        return ";".join(f"{name}:{size}" for name, size in self.axes.items())

    @property
    def layout(self) -> str:
        """The layout rules."""
        batch = [name for name in ("data", "expert") if name in self.axes]
        rules = [f"{LAYERS}:stage"] if self.stages > 1 else []
        if batch:
            rules.append(f"batch:{'+'.join(batch)}")
        if self.expert > 1:
            rules.append(f"{EXPERTS}:expert")
        if self.model > 1:
            rules += [f"{dim}:model" for dim in self.split]
            if self.sequence_parallel:
                rules.append("residual_length:model")
        return ";".join(rules)

    def hparams(self) -> dict[str, Any]:
        """Returns the hparams that differ between candidates, by name."""
        own = ("mesh_shape", "layout", "microbatches", "recompute", "zero_stage")
        values = {name: getattr(self, name) for name in (*own, "sequence_parallel")}
        if self.stages > 1:
            values |= {"pipeline_schedule": self.schedule, "pipeline_chunks": self.chunks}
        return values

    def applied(self, hparams: HParams) -> HParams:
        """Returns a copy of hparams with the candidate's values."""
        return hparams.with_values(self.hparams())

    @property
    def kind(self) -> tuple[bool, bool, bool, str]:
        """The class for which an estimate is wrong by about the same factor."""
        return self.model > 1, self.expert > 1, self.stages > 1, self.recompute

    def program(self) -> Candidate:
        """Returns a candidate with the same lowered program.

        Schedules differ in their program only if they compute the gradients of weights separately.
        """
        schedule = lowered_schedule(pipeline_schedule(self.schedule).splits_backward)
        return dataclasses.replace(self, schedule=schedule, chunks=1)

    def permuted(self) -> Iterator[Candidate]:
        """Yields the candidate with its mesh axes in every order."""
        for order in itertools.permutations(self.axes):
            yield dataclasses.replace(self, order=order)


def candidates(
    hparams: HParams,
    sizes: Sizes,
    devices: int,
    rows: int,
    max_tensor_parallel: int,
    fixed: Mapping[str, Any],
) -> Iterator[Candidate]:
    """Yields the candidates for a number of devices, with their axes in the default order.

    `rows` are the rows of the global batch. Hparams in `fixed` are not varied.
    """

    def pick(name: str, values: Sequence[Any]) -> Sequence[Any]:
        return [fixed[name]] if name in fixed else values

    recomputes = pick("recompute", ("none", "layer")) if "recompute" in hparams else ("none",)
    has_sequence = "sequence_parallel" in hparams
    for model in _tensor_parallel(sizes, devices):
        if model > max_tensor_parallel:
            continue
        split = tuple(
            dim
            for dim in (*_MUST_SPLIT, *_MAY_SPLIT)
            if dim in sizes and (declared(dim).padded or all(n % model == 0 for n in sizes[dim]))
        )
        may_split = model > 1 and has_sequence and hparams.get("max_length") % model == 0
        sequence_parallel = [
            is_on for is_on in pick("sequence_parallel", (False, True)) if may_split or not is_on
        ]
        for stages in _divisors(devices // model):
            data = devices // model // stages
            if rows % data:
                continue
            microbatches = pick("microbatches", _microbatches(rows // data))
            options = (
                [n for n in microbatches if rows // data % n == 0],
                recomputes,
                [stage for stage in pick("zero_stage", range(4)) if data > 1 or not stage],
                sequence_parallel,
                _experts(sizes, data),
                list(_schedules(hparams, stages, pick)),
            )
            for *choice, expert, (schedule, chunks) in itertools.product(*options):
                # With one microbatch, ZeRO stages 1 and 2 are the same.
                if choice[0] == 1 and choice[2] == 2 and "zero_stage" not in fixed:
                    continue
                # With several chunks, `stages` must divide the microbatches: a stage goes on to the
                # next chunk after each group of `stages` microbatches.
                if chunks == 1 or choice[0] % stages == 0:
                    yield Candidate(  # type: ignore[call-arg]  # four choices
                        data, model, *choice, expert, stages, schedule, chunks, split
                    )


def possible_rules(sizes: Sizes) -> list[str]:
    """Returns the layout rules that candidates may have."""
    rules = [f"{LAYERS}:stage", "batch:data", "residual_length:model"]
    if EXPERTS in sizes:
        rules += ["batch:expert", "batch:data+expert", f"{EXPERTS}:expert"]
    return rules + [f"{dim}:model" for dim in (*_MUST_SPLIT, *_MAY_SPLIT) if dim in sizes]


def _tensor_parallel(sizes: Sizes, devices: int) -> list[int]:
    """Returns the sizes of the axis `model` that split all layers evenly."""
    to_split = [size for dim in _MUST_SPLIT for size in sizes.get(dim, ())]
    return _divisors(math.gcd(devices, *to_split)) if to_split else [1]


def _experts(sizes: Sizes, data: int) -> list[int]:
    """Returns the numbers of processors that may split the experts."""
    return _divisors(math.gcd(data, *sizes[EXPERTS])) if EXPERTS in sizes else [1]


def _microbatches(rows: int) -> list[int]:
    """Returns the numbers of microbatches into which a processor's rows can be divided."""
    return [n for n in _divisors(rows) if n <= _MOST_MICROBATCHES]


def _schedules(
    hparams: HParams, stages: int, pick: Callable[[str, Sequence[Any]], Sequence[Any]]
) -> Iterator[tuple[str, int]]:
    """Yields each schedule with each number of chunks into which the layers can be divided."""
    if stages == 1:
        yield "1f1b", 1
        return
    counts = depths(hparams)
    if not counts or "pipeline_schedule" not in hparams:
        return
    for schedule in pick("pipeline_schedule", searched_schedules()):
        possible = pipeline_schedule(schedule).chunks
        for chunks in pick("pipeline_chunks", possible):
            if chunks in possible and all(
                _can_be_dealt(n, stages * chunks, period(hparams)) for n in counts.values()
            ):
                yield schedule, chunks


def _can_be_dealt(layers: int, places: int, period: int) -> bool:
    """Whether `places` chunks can have layers of the same kinds, and nearly equally many layers."""
    if layers % (places * period) == 0:
        return True
    full = -(-layers // places) * places
    return period == 1 and places <= layers and full <= _MOST_UNEVEN * layers


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
