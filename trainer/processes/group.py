"""The launchers of several hosts: which of them leads, and who is lost.

Each launcher listens at its address of `--hosts`. The leader is the host that comes first; the
others report to it and get its orders. If it is lost or leaves, the first of those that are left
leads; a leader that comes back follows. Messages are signed with the secret of the run.

A host that is silent may be slow, cut off or lost, which only time tells. But where a launcher has
ended and its host has not, the host refuses connections to it: such a launcher is lost at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from t2tp.processes.messages import Channel, WrongSecretError
from t2tp.processes.process_spec import split_address
from t2tp.processes.rendezvous import listen
from t2tp.trainer.errors import UsageError
from t2tp.trainer.processes.leader import WAIT, Leader, Order, Policy, Report
from t2tp.trainer.processes.plan import Plan

_TICK_SECONDS = 0.2
_REPORT_SECONDS = 1.0  # A host reports so often, and at least so often before it counts as lost:
_REPORTS_PER_TIMEOUT = 10
_ATTEMPTS_PER_TIMEOUT = 3
# After so many reports did not come, the leader asks whether the host's launcher still listens.
_SILENT_REPORTS = 2
# So many refused connections to the leader in succession show that its launcher has ended.
_REFUSALS = 2

# Answers requests of other hosts: name -> function of the request's body and the channel.
Services = dict[str, Callable[[dict, Channel], None]]


class Group:
    """The launchers of a run, seen from one of them. A thread talks to the others.

    Attributes:
      order: what this host is to do.
    """

    def __init__(
        self,
        host: int,
        addresses: Sequence[str],
        policy: Policy,
        report: Report,
        secret: bytes,
        services: Services | None = None,
    ) -> None:
        """Listens and looks for the others.

        Args:
          host: index of this host.
          addresses: `host:port` of each launcher; empty if this host is the only one.
          policy: of the run.
          report: the state of this host.
          secret: of the run.
          services: answer other requests.

        Raises:
          ValueError: it cannot listen at its address.
        """
        self.order = Order(WAIT)
        self._host = host
        self._addresses = addresses
        self._policy = policy
        self._report = report
        self._secret = secret
        self._services = services or {}
        self._plan: Plan | None = None  # The latest that this host knows of.
        self._leader: Leader | None = None
        self._follows: int | None = None
        self._heard = time.monotonic()
        self._error: UsageError | None = None
        self._refusals = 0  # Of connections to the leader, one after another.
        self._ended: set[int] = set()  # The leader before, if its launcher has ended.
        self._asked: set[int] = set()  # Silent hosts that are being asked whether they listen.
        self._lock = threading.RLock()
        self._changed, self._closed = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(32)
        if addresses:
            self._listener = listen(addresses[host])
            self._listener.settimeout(_TICK_SECONDS)
            threading.Thread(target=self._serve, daemon=True).start()
        else:
            self._leader = Leader(host, policy, time.monotonic())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._changed.set()
        self._thread.join()
        if self._addresses:
            self._listener.close()
        self._threads.shutdown(wait=False)

    @property
    def is_over(self) -> bool:
        """Whether this launcher may exit: the others do not need it any more."""
        return self._leader is None or self._leader.is_over

    def update(self, report: Report) -> Order:
        """Sets the state of this host and returns its order.

        Raises:
          UsageError: this host was started with other flags than the leader.
        """
        if self._error is not None:
            raise self._error
        if report != self._report:
            self._report = report
            self._changed.set()
        return self.order

    def ask(self, host: int, kind: str, body: Any, seconds: float) -> Any:
        """Sends another host a request and returns its answer.

        Raises:
          OSError: it is not reached in time.
          ValueError: it has another secret or answers something else.
        """
        with contextlib.closing(self.open(host, kind, body, seconds)) as channel:
            return channel.receive(time.monotonic() + seconds)

    def open(self, host: int, kind: str, body: Any, seconds: float) -> Channel:
        """Sends another host a request; the caller receives the answer. Raises as `ask`."""
        address = split_address(self._addresses[host], "address")
        channel = Channel(socket.create_connection(address, timeout=seconds), self._secret)
        try:
            deadline = time.monotonic() + seconds
            channel.accept_challenge(deadline)
            channel.send({"kind": kind, "from": self._host, "body": body}, deadline)
        except BaseException:
            channel.close()
            raise
        return channel

    def _run(self) -> None:
        """Reports to the leader, or leads, until this launcher ends."""
        while not self._closed.is_set():
            if self._leader is not None:
                self._lead(self._leader)
                self._wait(_TICK_SECONDS)
            elif self._follows is None:
                self._find_leader()
                self._wait(_TICK_SECONDS)
            else:
                self._follow(self._follows)
                self._wait(self._report_seconds)

    @property
    def _report_seconds(self) -> float:
        """Seconds from one report to the next."""
        return min(_REPORT_SECONDS, self._policy.host_timeout / _REPORTS_PER_TIMEOUT)

    def _wait(self, seconds: float) -> None:
        """Waits, but not if this host's state has changed."""
        self._changed.wait(seconds)
        self._changed.clear()

    def _lead(self, leader: Leader) -> None:
        now = time.monotonic()
        with self._lock:
            self._obey(leader.report(self._report, now))
            silent = set(leader.silent(_SILENT_REPORTS * self._report_seconds)) - self._asked
            self._asked |= silent
        for host in silent:
            self._threads.submit(self._ask_whether_it_listens, leader, host, now)
        if self._addresses and now - self._heard > self._policy.host_timeout / 2:
            self._heard = now
            better = self._survey(leader)
            with self._lock:
                if better is not None and self._leader is leader:
                    self._leader, self._follows = None, better
                    self._heard = time.monotonic()

    def _ask_whether_it_listens(self, leader: Leader, host: int, now: float) -> None:
        """Tells the leader if a silent host refuses connections to its launcher."""
        address = split_address(self._addresses[host], "address")
        try:
            seconds = self._policy.host_timeout / _ATTEMPTS_PER_TIMEOUT
            socket.create_connection(address, seconds).close()
        except ConnectionRefusedError:
            with self._lock:
                leader.has_ended(host, now)
        except OSError:
            pass  # It is cut off, or lost.
        finally:
            self._asked.discard(host)

    def _follow(self, host: int) -> None:
        seconds = self._policy.host_timeout
        try:
            answer = self.ask(
                host,
                "report",
                {"report": self._report.to_json(), "policy": str(self._policy)},
                seconds / _ATTEMPTS_PER_TIMEOUT,
            )
            if "error" in answer:
                self._error = UsageError(answer["error"])
            elif "order" in answer:
                self._obey(Order.from_json(answer["order"]))
                self._heard = time.monotonic()
            elif answer["follows"] not in (None, self._host):
                self._follows = answer["follows"]
            self._refusals = 0
        except ConnectionRefusedError:
            self._refusals += 1
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if time.monotonic() - self._heard > seconds or self._refusals >= _REFUSALS:
            # The processes cannot go on without those of the other hosts.
            self.order = Order(WAIT, self._plan)
            self._ended = {host} if self._refusals >= _REFUSALS else set()
            self._follows, self._refusals = None, 0

    def _obey(self, order: Order) -> None:
        self.order = order
        if order.plan is not None:
            self._plan = order.plan

    def _find_leader(self) -> None:
        """Follows the leader of the others, or leads."""
        better = self._survey(None)
        with self._lock:
            self._heard = time.monotonic()
            if better is not None:
                self._follows = better
            elif not self._report.is_running:  # Those of a round without this leader end first.
                now = time.monotonic()
                self._leader = Leader(self._host, self._policy, now, self._plan, self._ended)

    def _survey(self, own: Leader | None) -> int | None:
        """Asks all hosts whom they follow; returns the one to follow, None if it is this one.

        Args:
          own: this host's leader, if it leads.
        """
        others = [host for host in range(len(self._addresses)) if host != self._host]
        states = dict(zip(others, self._threads.map(self._state_of, others), strict=True))
        found = {host: state for host, state in states.items() if state is not None}
        running = [host for host, state in found.items() if state["leads"] and state["size"]]
        size = len(own.plan.members) if own is not None and own.is_running and own.plan else 0
        if running:
            # Two leaders with running rounds were cut off from each other: the larger stays.
            best = max(running, key=lambda host: (found[host]["size"], -host))
            if (found[best]["size"], -best) > (size, -self._host):
                return best
        leaders = [host for host, state in found.items() if state["leads"]]
        if own is not None:
            # A leader stays, unless two have begun to gather hosts at the same time.
            return (
                min(leaders) if not size and min(leaders, default=self._host) < self._host else None
            )
        if leaders:
            return min(leaders)
        led = [state["follows"] for state in found.values() if state["size"]]
        if led and led[0] in found:
            return led[0]
        first = min([self._host, *found])
        return None if first == self._host else first

    def _state_of(self, host: int) -> dict | None:
        try:
            seconds = self._policy.host_timeout / _ATTEMPTS_PER_TIMEOUT
            state = self.ask(host, "state", None, seconds)
            return {name: state[name] for name in ("leads", "follows", "size")}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _serve(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answers the request of a connection."""
        deadline = time.monotonic() + self._policy.host_timeout
        with contextlib.closing(Channel(connection, self._secret)) as channel:
            try:
                channel.challenge(deadline)
                request = channel.receive(deadline)
                if request["kind"] in self._services:
                    self._services[request["kind"]](request["body"], channel)
                else:
                    channel.send(self._answer_to(request), deadline)
            except WrongSecretError:
                with contextlib.suppress(OSError):
                    channel.refuse(deadline)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                pass  # A port scanner, say.

    def _answer_to(self, request: dict) -> dict:
        with self._lock:
            leader = self._leader
            if request["kind"] == "state":
                trains = self._report.is_running if leader is None else leader.is_running
                size = len(self._plan.members) if trains and self._plan is not None else 0
                follows = self._host if leader is not None else self._follows
                return {"leads": leader is not None, "follows": follows, "size": size}
            report = Report.from_json(request["body"]["report"])
            if request["body"]["policy"] != str(self._policy):
                return {
                    "error": f"host {report.host} was started with other flags than host"
                    f" {self._host}: start t2tp_launch with the same at all hosts"
                }
            if leader is None:
                return {"follows": self._follows}
            return {"order": leader.report(report, time.monotonic()).to_json()}
