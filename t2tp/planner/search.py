"""Searches for the meshes, layouts and hparams that train a model fastest.

Lowering one program takes about a second, and a search for 3,072 devices has hundreds of thousands
of candidates. So a quick `Estimate` first rejects the candidates that do not fit, and sorts the
remaining candidates by time. The estimate lowers only one row of the batch, on one device. Then the
best candidate of each class is lowered and planned (classes differ in whether they split layers,
experts or stages, and recompute). This corrects the estimates of all candidates of the class, and
the best are planned, until `top` of them fit or 4 * `top` programs have been lowered.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2tp.garbage_collection import without_garbage_collection
from t2tp.hparam import HParams
from t2tp.mesh.layout import LayoutError
from t2tp.planner.candidates import RESET, Candidate, candidates, possible_rules
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.depth import depths
from t2tp.planner.estimate import Estimate
from t2tp.planner.plan import Plan
from t2tp.planner.request import Request
from t2tp.suggestions import check_known

# Max number of devices that a search tries.
_MOST_DEVICES = 1 << 16
_DAY = 86_400  # Seconds.
# The estimated seconds and bytes are assumed to be at most these multiples of the seconds and bytes
# that are planned from the lowered program.
_SECONDS_ERROR, _BYTES_ERROR = 1.5, 1.05
# The estimates of two classes of candidates are comparable up to this factor.
_CLASS_ERROR = 1.5
# The search ends if no other candidate is expected to be faster by more than this factor.
_CLOSE = 1.02
# How many of the best candidates are kept. Each is then tried with its mesh axes in other orders.
_PERMUTED = 500


class NothingFitsError(LayoutError):
    """No layout of a model fits into the devices' memory."""


@dataclass(frozen=True)
class Proposal:
    """A candidate that fits.

    Attributes:
      hparams: all hparams, with the candidate's choices.
      flags: flags of `t2tp_plan` and `t2tp_trainer` with these hparams.
    """

    candidate: Candidate
    hparams: HParams
    flags: str
    plan: Plan


def layout_flags(hparams: HParams) -> str:
    """Returns the flags with the mesh and the layout of hparams."""
    return f"--mesh_shape='{hparams.mesh_shape}' --layout='{hparams.layout}'"


@dataclass(frozen=True)
class Search:
    """A search for a model and a cluster.

    Attributes:
      request: the model; its hparams give the global batch.
      rows: rows of the global batch.
      max_tensor_parallel: max size of the axis `model`. Default: the devices of a host.
      fixed: values of hparams that the search must not change, by name.
      rules: rules that the layout must include, such as `heads:model`.
      top: number of proposals.
      flags: formats a proposal's hparams as flags.
      progress: wraps the programs to lower, to show progress.
    """

    request: Request
    cluster: ClusterFile
    devices: int
    rows: int
    max_tensor_parallel: int = 0
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rules: Sequence[str] = ()
    top: int = 10
    flags: Callable[[HParams], str] = layout_flags
    progress: Callable[[Iterator[list[Candidate]]], Iterable[list[Candidate]]] = iter

    def run(self) -> list[Proposal]:
        """Returns the proposals, fastest first.

        Raises:
          NothingFitsError: no candidate fits; the error names a number of devices that may suffice.
          LayoutError: one of `rules` is in no candidate of this model.
        """
        self._check_rules()
        proposals = self._plan(self._rank())
        if not proposals:
            raise NothingFitsError(self._reason())
        return proposals

    def fewest_devices(self, tokens: float, days: float) -> list[Proposal]:
        """Doubles the number of devices, from `devices` on, until training takes at most `days`.

        Returns the proposals for that number of devices, fastest first.

        Raises:
          NothingFitsError: no number of devices is fast enough with this batch.
          LayoutError: one of `rules` is in no candidate of this model.
        """
        self._check_rules()
        for search in (self, *self._larger()):
            ranked = search._rank()
            if ranked:
                seconds = search.estimate.seconds(ranked[0], self.rows)
                # Lowering takes long, so nothing is lowered if the estimate is far above the limit.
                if tokens / self.request.tokens * seconds / _DAY <= _SECONDS_ERROR * days:
                    proposals = search._plan(ranked)
                    if proposals and days_of(proposals[0].plan, tokens) <= days:
                        return proposals
        raise NothingFitsError(
            f"{self.request.name} takes more than {days:g} days on any number of devices of"
            f" {self.cluster.name} with a batch of {self.rows} rows: use a larger batch."
        )

    def _larger(self) -> Iterator[Search]:
        """Yields the same search for 2, 4, 8, ... times the devices."""
        for i in range(1, (_MOST_DEVICES // self.devices).bit_length()):
            yield dataclasses.replace(self, devices=self.devices << i)

    @functools.cached_property
    def _hparams(self) -> HParams:
        """Hparams of the model, with values that cannot contradict a candidate's mesh."""
        values = {name: value for name, value in RESET.items() if name not in self.fixed}
        return self.request.hparams.with_values(values)

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The quick estimate that ranks candidates."""
        hparams = Candidate(1, 1, 1, "none", 0, False).applied(self._hparams)
        one_row = {"batch_size": 1, "batch_size_unit": "sequences_per_batch"}
        hparams = hparams.with_values(one_row)
        row = dataclasses.replace(self.request, hparams=hparams)
        shallow = hparams.with_values(dict.fromkeys(depths(hparams), 1))
        one_layer = dataclasses.replace(self.request, hparams=shallow)
        cluster = self.cluster.on_mesh(self.devices)
        return Estimate(row.lowered(cluster), one_layer.lowered(cluster), hparams, cluster)

    @functools.cached_property
    def _sizes(self) -> dict[str, set[int]]:
        """The sizes of each dimension of the model's weights."""
        sizes: dict[str, set[int]] = {}
        for dim in itertools.chain.from_iterable(self.estimate.shapes):
            sizes.setdefault(dim.name, set()).add(dim.size)
        return sizes

    def _check_rules(self) -> None:
        known = possible_rules(self._sizes)
        for rule in self.rules:
            proposed = f"layout that a search proposes for {self.request.name}"
            check_known(rule, known, "rules", f"no {proposed} has the rule {rule!r}", LayoutError)

    def _candidates(self) -> Iterator[Candidate]:
        most = self.max_tensor_parallel or self.cluster.host_devices
        return candidates(self._hparams, self._sizes, self.devices, self.rows, most, self.fixed)

    def _rank(self) -> list[Candidate]:
        """Returns the candidates that may fit, sorted by estimated seconds."""

        def order(candidate: Candidate) -> tuple[float, int]:
            return self.estimate.seconds(candidate, self.rows), candidate.zero_stage

        best = sorted(self._candidates_that_fit(_BYTES_ERROR), key=order)[:_PERMUTED]
        return sorted((min(c.permuted(), key=order) for c in best), key=order)

    def _candidates_that_fit(self, share: float) -> Iterator[Candidate]:
        """Yields the candidates with an estimated memory up to `share` times the usable memory."""
        limit = share * self.cluster.usable_memory(self.devices)
        for candidate in self._candidates():
            is_allowed = set(self.rules) <= set(candidate.layout.split(";"))
            if is_allowed and self.estimate.memory(candidate, self.rows) <= limit:
                yield candidate

    def _plan(self, ranked: Sequence[Candidate]) -> list[Proposal]:
        """Plans the most promising candidates; returns the fastest that fit and are valid.

        Candidates that differ only in the pipeline's schedule or number of chunks are planned
        together: they share one lowered program, and lowering takes long; see `lowered_schedule`.
        """
        # Class of candidates -> seconds and bytes of the lowered program relative to the estimate.
        factors: dict[tuple, tuple[float, float]] = {}
        proposals: list[Proposal] = []
        groups = itertools.islice(self._in_order(ranked, factors, proposals), 4 * self.top)
        for group in self.progress(groups):
            with without_garbage_collection():
                planned = list(self._proposals(group[: self.top]))
            for each in planned:
                factors.setdefault(each.candidate.kind, self._factors(each))
                if each.plan.fits == "yes":
                    proposals.append(each)
            proposals.sort(key=lambda each: each.plan.seconds)
        return proposals[: self.top]

    def _factors(self, proposal: Proposal) -> tuple[float, float]:
        """Returns the seconds and bytes of a lowered program relative to their estimates."""
        seconds = self.estimate.seconds(proposal.candidate, self.rows)
        num_bytes = self.estimate.memory(proposal.candidate, self.rows)
        return proposal.plan.seconds / seconds, proposal.plan.memory_total / num_bytes

    def _in_order(
        self,
        ranked: Sequence[Candidate],
        factors: Mapping[tuple, tuple[float, float]],
        proposals: Sequence[Proposal],
    ) -> Iterator[list[Candidate]]:
        """Yields the candidates of each program, the best of each class first.

        The estimate is wrong by about the same factor for all candidates of a class. So the others
        follow in the order of their estimates times the `factors` of their classes, until no other
        is expected to be faster than `top` proposals by more than `_CLOSE`. A class without factors
        gets the smallest of the other classes. Candidates that do not fit by these estimates come
        last, and only if nothing else fits.
        """
        groups: dict[Candidate, list[Candidate]] = {}
        for candidate in ranked:
            groups.setdefault(candidate.program(), []).append(candidate)
        seconds = {each: self.estimate.seconds(each, self.rows) for each in groups}
        num_bytes = {each: self.estimate.memory(each, self.rows) for each in groups}
        most_seconds = _CLASS_ERROR * min(seconds.values(), default=0.0)
        seen: set[tuple] = set()
        for program in list(groups):
            is_new = program.kind not in seen and len(seen) < self.top
            if is_new and seconds[program] <= most_seconds:
                seen.add(program.kind)
                yield groups.pop(program)
        most_bytes = _BYTES_ERROR * self.cluster.usable_memory(self.devices)
        while groups:
            fastest = min((factor for factor, _ in factors.values()), default=1.0)
            scales = {each: factors.get(each.kind, (fastest, 1.0)) for each in groups}
            choices = [each for each in groups if scales[each][1] * num_bytes[each] <= most_bytes]
            if not choices and not proposals:
                # The estimated bytes may be wrong. Without a proposal, tries the others too.
                choices = list(groups)
            if not choices:
                return
            expected = {each: scales[each][0] * seconds[each] for each in choices}
            best = min(choices, key=lambda each: expected[each])
            slowest = proposals[self.top - 1 : self.top]
            if slowest and slowest[0].plan.seconds <= _CLOSE * expected[best]:
                return
            yield groups.pop(best)

    def _proposals(self, group: Sequence[Candidate]) -> Iterator[Proposal]:
        """Plans candidates; yields the candidates whose layout is valid."""
        for candidate in group:
            hparams = candidate.applied(self._hparams)
            try:
                plan = dataclasses.replace(self.request, hparams=hparams).plan(self.cluster)
            except LayoutError:
                continue
            yield Proposal(candidate, hparams, self.flags(hparams), plan)

    def _reason(self) -> str:
        """Explains why nothing fits: the batch, the choices, or the number of devices."""
        model = f"{self.request.name} with a batch of {self.rows} rows"
        where = f"{self.devices} device{'s' * (self.devices > 1)} of {self.cluster.name}"
        rejected = list(self._candidates())
        if not rejected:
            return (
                f"no mesh of {where} divides {model}"
                f"{f' and {_text(self.fixed)}' if self.fixed else ''}: use a multiple of"
                f" {self.devices} rows, or more tensor parallelism than"
                f" {self.max_tensor_parallel or self.cluster.host_devices}."
            )
        if self.rules and not any(set(self.rules) <= {*c.layout.split(";")} for c in rejected):
            return f"no mesh of {where} allows the rules {', '.join(self.rules)} for {model}."
        larger = (s.devices for s in self._larger() if any(s._candidates_that_fit(1.0)))
        if fewest := next(larger, 0):
            return f"{model} does not fit on {where}: it may fit on {fewest}."
        return (
            f"{model} does not fit on any number of devices of {self.cluster.name} with these"
            " choices: allow more tensor parallelism, or a larger batch."
        )


def _text(values: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def pareto(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Returns the proposals that no other beats in both time and memory, fastest first."""
    front: list[Proposal] = []
    least = math.inf
    for each in sorted(proposals, key=lambda p: (p.plan.seconds, p.plan.memory_total)):
        if each.plan.memory_total < least:
            front.append(each)
            least = each.plan.memory_total
    return front


def days_of(plan: Plan, tokens: float) -> float:
    """Returns the days that training on these tokens takes."""
    return tokens / plan.tokens_per_second / _DAY


def price_of(plan: Plan, tokens: float) -> float:
    """Returns the price of training on these tokens, in the currency of `price_per_hour`.

    Returns 0 if the price of a device is unknown.
    """
    return 24 * days_of(plan, tokens) * plan.devices * plan.price_per_hour
