"""The decisions for all hosts of a run, made by one launcher: the leader.

Every host reports its state about once a second, and gets an order. The leader gathers hosts, plans
a round, watches it, and ends it when a process fails, a host is lost, or a host is back; then it
plans the next. It does nothing by itself: no clock, no network, so that every case can be tested.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from t2tp.processes.rendezvous import LOST_EXIT_CODE, RENDEZVOUS_SECONDS
from t2tp.trainer.memory_parts import choose_parts
from t2tp.trainer.processes.crashes import HOPELESS, LOOP, STOPPED, Outcome, crash_of, is_loop
from t2tp.trainer.processes.plan import Offer, Plan, choose, place

# Latest failures that a plan carries along.
_CRASHES = LOOP
_SAVE_SECONDS = 600.0  # In which the processes save and exit on a signal.
# A round lasts at least this long before it is ended for a host that is back.
_SETTLE_SECONDS = 20.0
# When a launcher has ended, the others notice it within so many seconds of each other.
_NEWS_SECONDS = 5.0


@dataclass(frozen=True)
class Report:
    """What a host tells the leader.

    Attributes:
      host: its index.
      addresses: `host:port` for each process that it can run in the next round.
      has_gpus: whether these run on GPUs.
      round: the round that it runs, or has run last; 0: none yet.
      is_running: whether its processes run.
      outcome: how its processes have ended in the round; None while they run, if it had none, or if
        the leader has ended them.
      leaves: the signal on which it leaves the run; 0 if it stays.
      launcher_id: of its launcher; one that has been started again has another.
      parts: names of the parts of checkpoints that it has in memory.
    """

    host: int
    addresses: tuple[str, ...]
    has_gpus: bool = False
    round: int = 0
    is_running: bool = False
    outcome: Outcome | None = None
    leaves: int = 0
    launcher_id: str = ""
    parts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Report:
        """Reads what `to_json` returned.

        Raises:
          KeyError, TypeError: it is something else.
        """
        known = dict(fields)
        known["addresses"], known["parts"] = tuple(known["addresses"]), tuple(known["parts"])
        known["outcome"] = Outcome(**known["outcome"]) if known["outcome"] else None
        return cls(**known)


# What an order says.
WAIT, RUN, SAVE, KILL, EXIT = "wait", "run", "save", "kill", "exit"


@dataclass(frozen=True)
class Order:
    """What a host is to do.

    Attributes:
      what: `wait`: have no processes; `run`: those of the plan; `save`: ask them to save and exit;
        `kill`: end them; `exit`: end the launcher.
      plan: of the round that `run`, `save` and `kill` are about.
      code: exit code for `exit`.
      notices: the latest of what has happened, for the user, each with a unique key.
    """

    what: str
    plan: Plan | None = None
    code: int = 0
    notices: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        fields = asdict(self)
        fields["plan"] = self.plan.to_json() if self.plan else None
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Order:
        """Reads what `to_json` returned.

        Raises:
          KeyError, TypeError: it is something else.
        """
        known = dict(fields)
        known["plan"] = Plan.from_json(known["plan"]) if known["plan"] else None
        known["notices"] = tuple((key, text) for key, text in known["notices"])
        return cls(**known)


@dataclass(frozen=True)
class Policy:
    """How the run is carried out; the same at all hosts.

    Attributes:
      num_hosts: of the full run.
      num_processes: of the full run.
      max_restarts: failures after which a round is planned again; the next one ends the run.
      meshes: see `plan.parse_meshes`.
      host_timeout: seconds without a report after which a host is lost. (A launcher that is known
        to have ended is lost at once: see `Leader.has_ended`.)
    """

    num_hosts: int
    num_processes: int
    max_restarts: int
    meshes: tuple[str, ...] = ()
    host_timeout: float = 10.0


# Leads after a leader has left.
NOBODY = -1

# States of the leader.
_GATHERING, _RUNNING, _ENDING, _OVER = "gathering", "running", "ending", "over"


@dataclass
class Leader:
    """The leader of a run; call `report` for each report and `tick` about five times a second.

    Attributes:
      host: index of the leader's host.
      policy: of the run.
      plan: of the current round, or of the one before; None before the first.
      ended: hosts whose launchers are known to have ended, which therefore cannot train elsewhere.
    """

    host: int
    policy: Policy
    now: float
    plan: Plan | None = None
    ended: set[int] = field(default_factory=set)
    _state: str = _GATHERING
    _since: float = 0.0
    _how_to_end: str = KILL
    _launcher_ids: dict[int, str] = field(default_factory=dict)
    _code: int = 0
    _seen: dict[int, tuple[Report, float]] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    _notices: list[tuple[str, str]] = field(default_factory=list)
    _acknowledged: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._since = self._born = self.now
        self._by_request = False
        self._may_be_late = False
        if self.plan is not None:
            self._may_be_late = True  # Other hosts may not know yet that the leader before is lost.
            if self.plan.leader == NOBODY:
                self._may_be_late = False  # The leader has told all before it left.
            elif self.plan.leader != self.host:
                self._lost.add(self.plan.leader)
                self._fail(f"host {self.plan.leader}, which led, is lost", None, LOST_EXIT_CODE)
                if self._state == _ENDING:
                    self._enter(_GATHERING)

    @property
    def is_running(self) -> bool:
        """Whether a round is running."""
        return self._state == _RUNNING

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or its leader leaves, and all hosts that are there know."""
        is_over = self._state == _OVER or self._has_left
        return is_over and self._fresh().keys() <= self._acknowledged

    @property
    def _has_left(self) -> bool:
        return self._state == _GATHERING and self.host in self._left

    def report(self, report: Report, now: float) -> Order:
        """Takes the report of a host and returns its order."""
        self.now = now
        if not report.leaves:
            self._left.discard(report.host)
        self._seen[report.host] = (report, now)
        self._lost.discard(report.host)
        self.ended.discard(report.host)
        self.tick(now)
        return self._order_for(report)

    def silent(self, seconds: float) -> list[int]:
        """Returns the hosts that have reported before, but not in the last so many seconds."""
        return [
            host
            for host, (_, at) in self._seen.items()
            if host != self.host and at < self.now - seconds
        ]

    def has_ended(self, host: int, asked: float) -> None:
        """Takes note that nobody listens at the address of a host's launcher.

        Args:
          host: index of the host.
          asked: when it was asked; a report that has come since then counts more.
        """
        if host in self._seen and self._seen[host][1] <= asked:
            del self._seen[host]
            self.ended.add(host)

    def tick(self, now: float) -> None:
        """Makes the decisions that are due."""
        self.now = now
        if self._state == _GATHERING:
            self._gather()
        elif self._state == _RUNNING:
            self._watch()
        if self._state == _ENDING:
            self._finish()

    def _order_for(self, report: Report) -> Order:
        notices = tuple(self._notices[-8:])
        if self._state == _OVER:
            self._acknowledged.add(report.host)
            return Order(EXIT, code=self._code, notices=notices)
        if self._has_left:
            self._acknowledged.add(report.host)
        if report.leaves and not report.is_running and report.host in self._left:
            return Order(EXIT, code=128 + report.leaves, notices=notices)
        mine = self.plan is not None and report.host in self.plan.members
        if self._state == _RUNNING and mine:
            return Order(RUN, self.plan, notices=notices)
        if self._state == _ENDING and mine:
            return Order(self._how_to_end, self.plan, notices=notices)
        return Order(WAIT, self.plan, notices=notices)

    def _fresh(self) -> dict[int, Report]:
        """Returns the reports of the hosts that are there."""
        oldest = self.now - self.policy.host_timeout
        return {host: report for host, (report, at) in self._seen.items() if at >= oldest}

    def _offers(self) -> dict[int, Offer]:
        """Returns the hosts that can take part in the next round."""
        return {
            host: Offer(report.addresses, report.has_gpus)
            for host, report in sorted(self._fresh().items())
            if not report.is_running and not report.leaves
        }

    def _gather(self) -> None:
        """Begins a round if the hosts are there."""
        fresh, offers = self._fresh(), self._offers()
        staying = {host for host, report in fresh.items() if not report.leaves}
        for host, report in fresh.items():
            if report.leaves and not report.is_running:
                self._left.add(host)
        if any(report.leaves == signal.SIGINT for report in fresh.values()):
            self._end_run(128 + signal.SIGINT)  # Ctrl-C ends the run everywhere.
            return
        if fresh and not staying:
            self._end_run(128 + max(report.leaves for report in fresh.values()))
            return
        if self.host in self._left:
            # The others go on with another leader; that this one is gone is no failure.
            if self.plan is not None:
                self.plan = replace(self.plan, leader=NOBODY)
            return
        waited = self.now - self._since
        if len(offers) == self.policy.num_hosts:
            self._begin(offers)
        elif self.plan is None:
            if waited > RENDEZVOUS_SECONDS:
                absent = [str(h) for h in range(self.policy.num_hosts) if h not in offers]
                self._say(
                    f"of {self.policy.num_hosts} hosts, number {', '.join(absent)} did not come"
                    f" within {RENDEZVOUS_SECONDS:.0f} s."
                )
                self._end_run(LOST_EXIT_CODE)
        elif staying <= offers.keys() and waited >= self._patience(offers.keys()):
            self._begin(offers)

    def _patience(self, here: Collection[int]) -> float:
        """Returns how long to wait for hosts that are not here.

        The part of a run that is cut off from the rest must not go on beside it. Either part may
        train, and only one of them can: it locks the directory of the run. The larger goes first.
        """
        assert self.plan is not None
        expected = set(self.plan.members) - self._left - self.ended
        missing = expected - self._lost - set(here)
        seconds = 2 * self.policy.host_timeout if missing or self._may_be_late else 0.0
        if not missing and self.plan.leader in self.ended:
            seconds = min(seconds, _NEWS_SECONDS)
        if 2 * len(expected & set(here)) < len(expected) + (min(expected, default=0) not in here):
            seconds += 3 * self.policy.host_timeout
        return seconds

    def _begin(self, offers: Mapping[int, Offer]) -> None:
        """Plans a round and begins it; waits if there are too few hosts."""
        chosen = choose(offers, self.policy.num_processes, self.policy.meshes)
        if chosen is None:
            self._say(
                f"{len(offers)} of {self.policy.num_hosts} hosts are there, too few for the mesh:"
                " waiting for the others."
            )
            return
        count, mesh = chosen
        hosts, addresses = place(offers, count)
        rounds = [report.round for report, _ in self._seen.values()]
        before = self.plan or Plan(0, self.host, (), ())
        number = max(before.number, *rounds) + 1
        if count < self.policy.num_processes or before.number:
            self._say(
                f"round {number}: {count} of {self.policy.num_processes} processes"
                + (
                    f" on {len(set(hosts))} of {self.policy.num_hosts} hosts"
                    if self.policy.num_hosts > 1
                    else ""
                )
                + (f", mesh {mesh}" if mesh else "")
                + ", from the last checkpoint."
            )
        memory = choose_parts({host: report.parts for host, report in self._fresh().items()})
        self.plan = replace(
            before,
            number=number,
            leader=self.host,
            hosts=hosts,
            addresses=addresses,
            mesh=mesh,
            memory=memory,
        )
        self._launcher_ids = {host: self._seen[host][0].launcher_id for host in self.plan.members}
        self._enter(_RUNNING)
        self._may_be_late = False
        self._lost.clear()

    def _watch(self) -> None:
        """Ends the round when something happens in it."""
        assert self.plan is not None
        fresh = self._fresh()
        members = set(self.plan.members)
        lost = sorted(
            host
            for host in members
            if host not in fresh or fresh[host].launcher_id != self._launcher_ids[host]
        )
        outcomes = self._outcomes(fresh)
        if lost:
            names = " and ".join(f"host {host}" for host in lost)
            self._lost.update(lost)
            self._fail(f"{names} is lost" if len(lost) == 1 else f"{names} are lost", None, 1)
        elif failures := [each for each in outcomes.values() if each.code]:
            causes = [each for each in failures if not each.is_consequence]
            first = (causes or failures)[0]
            # A process that a signal ends before it trains is missed by the others.
            self._by_request = first.is_consequence and self._is_to_end(fresh)
            if first.code in STOPPED or self._by_request:
                self._end_round(SAVE)
            else:
                self._fail(first.describe(), first, first.code)
        elif members <= outcomes.keys():
            self._end_run(0)
        elif self._is_to_end(fresh):
            self._by_request = True
            self._end_round(SAVE)
        elif self._has_settled() and self._can_grow(fresh):
            self._say("a host is back: the run saves its step, to go on with it.")
            self._by_request = True
            self._end_round(SAVE)

    def _is_to_end(self, fresh: Mapping[int, Report]) -> bool:
        """Whether the round ends because a host leaves; a spare leaves without that.

        A host that has left is silent, but its last report still counts as fresh for a while.
        """
        assert self.plan is not None
        leaving = {h: report.leaves for h, report in fresh.items() if report.leaves}
        spares = leaving.keys() - set(self.plan.members)
        self._left.update(host for host in spares if leaving[host] != signal.SIGINT)
        return bool(leaving.keys() - self._left)

    def _outcomes(self, fresh: Mapping[int, Report]) -> dict[int, Outcome]:
        """Returns how the processes of the round have ended, of hosts where they have."""
        assert self.plan is not None
        return {
            host: report.outcome
            for host, report in fresh.items()
            if report.round == self.plan.number and not report.is_running and report.outcome
        }

    def _has_settled(self) -> bool:
        """Whether the round may end for a host that is back."""
        return self.now - self._since > min(_SETTLE_SECONDS, 2 * self.policy.host_timeout)

    def _can_grow(self, fresh: Mapping[int, Report]) -> bool:
        """Whether all hosts that are there could run more processes, or a mesh before this one."""
        assert self.plan is not None
        offers = {
            host: Offer(report.addresses, report.has_gpus)
            for host, report in fresh.items()
            if not report.leaves
        }
        chosen = choose(offers, self.policy.num_processes, self.policy.meshes)
        return chosen is not None and chosen[0] > len(self.plan.addresses)

    def _fail(self, what: str, outcome: Outcome | None, code: int) -> None:
        """Counts a failure; ends the round, or the run if it is one too many."""
        assert self.plan is not None
        restarts = self.plan.restarts + 1
        crashes = self.plan.crashes
        if outcome is not None and not outcome.is_consequence:
            crashes = (*crashes, crash_of(outcome))[-_CRASHES:]
        self.plan = replace(self.plan, restarts=restarts, crashes=crashes)
        if outcome is not None and outcome.code in HOPELESS:
            self._say(f"{what}; a restart would not help.")
            self._end_run(code)
        elif outcome is not None and is_loop(crashes):
            self._say(
                f"{what}, for the {LOOP}rd time with the same error: a crash loop, which ends"
                " the run."
            )
            self._end_run(code)
        elif restarts > self.policy.max_restarts:
            if self.policy.max_restarts:
                self._say(f"{what}, after {self.policy.max_restarts} restarts: the run ends.")
            else:
                self._say(f"{what}.")
            self._end_run(code if outcome is not None else LOST_EXIT_CODE)
        else:
            self._say(f"{what}: restart {restarts} of {self.policy.max_restarts}.")
            self._end_round(KILL)

    def _finish(self) -> None:
        """Waits until the processes of the round have ended; then gathers again."""
        assert self.plan is not None
        fresh = self._fresh()
        self._lost.update(set(self.plan.members) - fresh.keys())
        running = [host for host in self.plan.members if host in fresh and fresh[host].is_running]
        if running:
            if self._how_to_end == SAVE and self.now - self._since > _SAVE_SECONDS:
                self._how_to_end = KILL
            return
        leaving = {host for host, report in fresh.items() if report.leaves}
        by_request = self._by_request or bool(leaving - self._left)
        self._left |= leaving
        outcomes = self._outcomes(fresh)
        failures = [each for each in outcomes.values() if each.code not in (0, *STOPPED)]
        codes = {each.code for each in outcomes.values()}
        if by_request:
            failures = [each for each in failures if not each.is_consequence]
        if self._how_to_end == SAVE and failures:
            self._how_to_end = KILL
            self._fail(failures[0].describe(), failures[0], failures[0].code)
        elif self._how_to_end == SAVE and codes == {0}:
            self._end_run(0)  # The training was at its end.
        elif self._how_to_end == SAVE and codes and not by_request:
            self._end_run(max(codes))  # Somebody has signalled the processes themselves.
        else:
            self._enter(_GATHERING)

    def _end_round(self, how: str) -> None:
        """Begins to end the processes of the round."""
        self._how_to_end = how
        self._enter(_ENDING)

    def _end_run(self, code: int) -> None:
        """Ends the run at all hosts."""
        self._code = code
        self._enter(_OVER)

    def _enter(self, state: str) -> None:
        if state == _RUNNING:
            self._by_request = False
        self._state, self._since = state, self.now

    def _say(self, text: str) -> None:
        """Adds a notice for the user."""
        if not self._notices or self._notices[-1][1] != text:
            self._notices.append((f"{self.host}-{self._born}-{len(self._notices)}", text))
