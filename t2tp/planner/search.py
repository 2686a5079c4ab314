"""Searches meshes, layouts and hparams for those that train a model fastest."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.garbage_collection import without_garbage_collection
from t2tp.mesh.layout import LayoutError
from t2tp.planner.candidates import Candidate, candidates
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.depth import depths
from t2tp.planner.estimate import Estimate
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request

# Of an answer to how many devices are enough, and of those that are tried below twice too few.
_MOST_DEVICES, _MOST_TRIED = 1 << 16, 64


_DAY = 86_400  # Seconds.
# How far a quick estimate may be off, of seconds and of bytes.
_ROUGHLY, _UNSURE = 1.5, 1.05
# Candidates of which other orders of the axes are tried.
_PERMUTED = 500


class NothingFitsError(ValueError):
    """No layout of a model fits into the devices' memory."""


@dataclass(frozen=True)
class Found:
    """A candidate and its plan."""

    candidate: Candidate
    plan: Plan


@dataclass(frozen=True)
class Search:
    """What to search for.

    Attributes:
      request: the model; its hparams say the global batch.
      cluster: the devices.
      devices: number of them.
      rows: of the global batch.
      max_tensor_parallel: max size of the axis `model`; by default the devices of a host.
      fixed: hparams that are not to be chosen, by name.
      rules: that the layout must have, as in `heads:model`.
      top: number of candidates that are planned and returned: the best by a quick estimate.
    """

    request: Request
    cluster: ClusterFile
    devices: int
    rows: int
    max_tensor_parallel: int = 0
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rules: Sequence[str] = ()
    top: int = 10

    def run(self) -> list[Found]:
        """Returns the best candidates that were planned and fit, fastest first.

        Raises:
          NothingFitsError: no candidate fits; the error names the fewest devices that may do.
        """
        estimate = self.estimate()
        ordered = self._ordered(estimate, self.devices)
        if not ordered:
            raise NothingFitsError(self._advice(estimate))
        found = self._planned(ordered)
        if not found:
            raise NothingFitsError(self._advice(estimate))
        return found

    def until(self, tokens: float, days: float) -> list[Found]:
        """Searches the fewest devices that are done with a training in time.

        Numbers of devices are doubled, from those of a search on.

        Args:
          tokens: of the whole training.
          days: that it may take.

        Returns:
          what a search for that number finds.

        Raises:
          NothingFitsError: no number of devices is fast enough with this batch.
        """
        estimate = self.estimate()
        devices = self.devices
        while devices <= _MOST_DEVICES:
            ordered = self._ordered(estimate, devices)
            if ordered:
                seconds = estimate.seconds(ordered[0], self.rows)
                # The estimate only decides which numbers of devices are not worth lowering.
                if tokens / self.request.tokens * seconds / _DAY <= _ROUGHLY * days:
                    found = self._planned(ordered)
                    if found and days_of(found[0].plan, tokens) <= days:
                        return found
            devices *= 2
        raise NothingFitsError(
            f"{self.request.name} takes more than {days:g} days on any number of devices of"
            f" {self.cluster.name} with a batch of {self.rows} rows: use a larger batch."
        )

    def estimate(self) -> Estimate:
        """Makes the quick estimate that orders candidates."""
        hparams = self.request.hparams.copy()
        alone: dict[str, Any] = {
            "mesh_shape": "",
            "microbatches": 1,
            "recompute": "none",
            "zero_stage": 0,
            "sequence_parallel": False,
            "batch_size": 1,
            "batch_size_unit": "sequences_per_batch",
        }
        for name, value in alone.items():
            if name in hparams:
                hparams.set(name, value)
        row = dataclasses.replace(self.request, hparams=hparams)
        shallow = hparams.copy()
        for name in depths(hparams):
            shallow.set(name, 1)
        one_layer = dataclasses.replace(self.request, hparams=shallow)
        return Estimate(
            row.lowered(self.cluster), one_layer.lowered(self.cluster), hparams, self.cluster
        )

    def _ordered(self, estimate: Estimate, devices: int) -> list[Candidate]:
        """Returns the candidates that may fit, the fastest by the estimate first."""

        def order(candidate: Candidate) -> tuple[float, int]:
            return estimate.seconds(candidate, self.rows), candidate.zero_stage

        best = sorted(self._fitting(estimate, devices, _UNSURE), key=order)[:_PERMUTED]
        return sorted((min(c.permuted(), key=order) for c in best), key=order)

    def _fitting(self, estimate: Estimate, devices: int, share: float) -> Iterator[Candidate]:
        """Yields the candidates that need no more than a share of the memory by the estimate."""
        most = self.max_tensor_parallel or self.cluster.host_devices
        limit = share * self.cluster.device.memory / self.cluster.sharing(devices)
        for candidate in candidates(self.request.hparams, devices, self.rows, most, self.fixed):
            is_allowed = set(self.rules) <= set(candidate.layout.split(";"))
            if is_allowed and estimate.memory(candidate, self.rows) <= limit:
                yield candidate

    def _planned(self, ordered: Sequence[Candidate]) -> list[Found]:
        """Plans the first candidates; those that cannot work or do not fit are left out.

        Most of the time goes into lowering. So a program that has been lowered is used for all the
        candidates that have it, as those have that differ in the schedule of their stages.

        Returns:
          as many as wanted, fastest first.
        """
        sharing: dict[Candidate, list[Candidate]] = {}
        for candidate in ordered:
            sharing.setdefault(candidate.program(), []).append(candidate)
        found: list[Found] = []
        for alike in itertools.islice(sharing.values(), 4 * self.top):
            with without_garbage_collection():
                found += self._fitting_plans(alike[: self.top])
            if len(found) >= self.top:
                break
        return sorted(found, key=lambda each: each.plan.seconds)[: self.top]

    def _fitting_plans(self, alike: Sequence[Candidate]) -> Iterator[Found]:
        """Plans candidates, and yields those that work and fit."""
        for candidate in alike:
            hparams = candidate.applied(self.request.hparams)
            try:
                plan = dataclasses.replace(self.request, hparams=hparams).plan(self.cluster)
            except LayoutError:
                continue
            if plan.fits != "no":
                yield Found(candidate, plan)

    def _advice(self, estimate: Estimate) -> str:
        """Returns what is in the way: the batch, or how many devices are enough by the estimate."""
        most = self.max_tensor_parallel or self.cluster.host_devices
        made = candidates(self.request.hparams, self.devices, self.rows, most, self.fixed)
        if next(made, None) is None:
            return (
                f"no mesh of {self.devices} devices divides a batch of {self.rows} rows of"
                f" {self.request.name}: use a multiple of {self.devices} rows, or of fewer with"
                f" more than {most} ways of tensor parallelism."
            )
        fewest = self._fewest_devices(estimate)
        if fewest:
            return (
                f"{self.request.name} does not fit on {self.devices} devices of"
                f" {self.cluster.name} with a batch of {self.rows} rows: {fewest} is the smallest"
                " number of devices that does."
            )
        return (
            f"{self.request.name} fits on no number of devices of {self.cluster.name} with a batch"
            f" of {self.rows} rows and these constraints: allow more tensor parallelism, or a"
            " larger batch."
        )

    def _fewest_devices(self, estimate: Estimate) -> int:
        """Returns the smallest number on which a candidate fits by the estimate; 0: none."""

        def fits(devices: int) -> bool:
            return next(self._fitting(estimate, devices, 1.0), None) is not None

        most = self.devices
        while most < _MOST_DEVICES and not fits(most):
            most *= 2
        if most >= _MOST_DEVICES:
            return 0
        step = max(1, most // 2 // _MOST_TRIED)
        between = range(most // 2 + step, most, step)
        return next((n for n in between if fits(n)), most)


def pareto(found: Sequence[Found]) -> list[Found]:
    """Returns those that no other beats in both time and memory, fastest first."""
    front: list[Found] = []
    least = math.inf
    for each in sorted(found, key=lambda f: (f.plan.seconds, f.plan.memory_total)):
        if each.plan.memory_total < least:
            front.append(each)
            least = each.plan.memory_total
    return front


def days_of(plan: Plan, tokens: float) -> float:
    """Returns the days that training on so many tokens takes."""
    return tokens / plan.tokens_per_second / _DAY


def price_of(plan: Plan, tokens: float) -> float:
    """Returns what these days cost, in the currency of `price_per_hour`; 0: unknown."""
    return 24 * days_of(plan, tokens) * plan.devices * plan.price_per_hour
