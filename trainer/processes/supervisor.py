"""Carries out on one host what the leader decides: starts processes, watches them, ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from t2tp.processes.messages import SECRET_VARIABLE
from t2tp.processes.process_spec import ROUND_VARIABLE, THREADS_VARIABLE, split_address
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.hooks.step_note import LAUNCH_DIR_VARIABLE, read_steps
from t2tp.trainer.processes.copies import Copies
from t2tp.trainer.processes.crashes import HOPELESS, STOPPED, Outcome
from t2tp.trainer.processes.group import Group
from t2tp.trainer.processes.leader import EXIT, KILL, RUN, SAVE, WAIT, Order, Policy, Report
from t2tp.trainer.processes.local_processes import LocalProcesses, round_environments
from t2tp.trainer.processes.plan import Plan

_POLL_SECONDS = 0.05
# After a failure, how long the other processes of the host may take to say what they know.
_REPORT_SECONDS = 1.0
_CONSEQUENCE_SECONDS = 5.0  # The process that is to blame may take longer to exit than others.
_SAVE_SECONDS = 600.0


@dataclass(frozen=True)
class HostSpec:
    """What this host runs.

    Attributes:
      command: program and arguments.
      num_processes: of this host in the full run.
      devices_per_process: devices that each process then has; None if that is not said.
      gpus: ids of this host's GPUs.
      environment: of the processes, with the secret of the run.
      directory: in memory, for what processes leave to those after them.
    """

    command: Sequence[str]
    num_processes: int
    devices_per_process: int | None
    gpus: Sequence[str]
    environment: Mapping[str, str]
    directory: Path


class Supervisor:
    """The processes of this host, as the leader wants them."""

    def __init__(self, host: int, addresses: Sequence[str], policy: Policy, spec: HostSpec) -> None:
        """Prepares without starting anything.

        Args:
          host: index of this host.
          addresses: `host:port` of each launcher; empty if this host is the only one.
          policy: of the run.
          spec: what this host runs.
        """
        self._host = host
        self._addresses = addresses
        self._policy = policy
        self._spec = spec
        self._local = LocalProcesses()
        self._copies = Copies(host, spec.directory)
        self._report = Report(
            host, self._fresh_addresses(), bool(spec.gpus), launcher_id=_new_launcher_id()
        )
        self._failed_at: float | None = None
        self._is_asked_to_save = False
        self._signalled_at = 0.0
        self._shown: set[str] = set()

    def run(self) -> int:
        """Runs until the leader ends the run; returns the exit code.

        Raises:
          OSError: the command cannot be started.
          UsageError: the hosts were started with different flags.
          ValueError: the launcher cannot listen at its address.
        """
        secret = self._spec.environment[SECRET_VARIABLE].encode()
        with (
            self._signals(),
            self._ended_processes(),
            Group(
                self._host,
                self._addresses,
                self._policy,
                self._report,
                secret,
                self._copies.services,
            ) as group,
            contextlib.closing(self._copies),
        ):
            self._copies.start(group)
            while True:
                self._look()
                order = group.update(self._report)
                self._show(order)
                if order.what == EXIT or self._is_left_alone():
                    break
                self._obey(order, group)
            code = order.code if order.what == EXIT else 128 + self._report.leaves
            self._end_in_time(_CONSEQUENCE_SECONDS if code else _SAVE_SECONDS)
            self._report = replace(self._report, is_running=False)
            deadline = time.monotonic() + 2 * self._policy.host_timeout
            while not group.is_over and time.monotonic() < deadline:
                group.update(self._report)
                time.sleep(_POLL_SECONDS)
        return code

    def _is_left_alone(self) -> bool:
        """Whether a signal came and no leader answers."""
        return (
            bool(self._report.leaves)
            and not self._report.is_running
            and time.monotonic() - self._signalled_at > 2 * self._policy.host_timeout
        )

    def _look(self) -> None:
        """Copies output and notes how processes have ended."""
        self._local.copy_output(_POLL_SECONDS)
        if not self._report.is_running:
            self._report = replace(self._report, parts=self._copies.names())
            return
        running = self._local.is_running
        if running and not self._local.has_failed:
            return
        now = time.monotonic()
        self._failed_at = self._failed_at or now
        outcome = self._local.outcome()
        if running and now - self._failed_at < _grace(outcome):
            return
        step = read_steps(self._spec.directory).get(outcome.process, 0)
        self._end(replace(outcome, step=step))

    def _obey(self, order: Order, group: Group) -> None:
        plan = order.plan
        if order.what == RUN and plan is not None and plan.number > self._report.round:
            self._end(None)
            self._copies.prepare(group, plan)
            self._start(plan)
        elif order.what == SAVE and self._report.is_running and not self._is_asked_to_save:
            self._is_asked_to_save = True
            self._local.signal(signal.SIGTERM)
        elif order.what in (WAIT, KILL) and self._report.is_running:
            self._end(None)

    def _start(self, plan: Plan) -> None:
        """Starts this host's processes of a round."""
        spec = self._spec
        indices = plan.processes_of(self._host)
        # Of the processors that a process has in the full run, it has so many times as many now.
        ratio = 1 if plan.mesh else self._policy.num_processes // len(plan.addresses)
        devices = spec.devices_per_process and spec.devices_per_process * ratio
        threads = int(spec.environment.get(THREADS_VARIABLE) or _threads(spec.num_processes))
        environment = {
            **spec.environment,
            LAUNCH_DIR_VARIABLE: str(spec.directory),
            ROUND_VARIABLE: str(plan.number),
            # Each device keeps its number of threads, on which the order of sums may depend.
            THREADS_VARIABLE: str(threads * ratio),
        }
        environments = round_environments(indices, plan.addresses, devices, environment, spec.gpus)
        command = [*spec.command, *([f"--mesh_shape={plan.mesh}"] if plan.mesh else [])]
        self._failed_at, self._is_asked_to_save = None, False
        self._local.start(command, environments, indices)
        self._report = replace(
            self._report,
            round=plan.number,
            is_running=True,
            outcome=None,
            addresses=self._fresh_addresses(),
        )
        if self._report.leaves:  # The signal came before there were processes.
            self._local.signal(self._report.leaves)

    def _end(self, outcome: Outcome | None) -> None:
        """Ends all processes at once."""
        if self._report.is_running:
            self._local.kill()
            parts = self._copies.names()
            self._report = replace(self._report, is_running=False, outcome=outcome, parts=parts)

    def _end_in_time(self, seconds: float) -> None:
        """Gives processes that still run some time to end by themselves."""
        deadline = time.monotonic() + seconds
        while self._report.is_running and self._local.is_running and time.monotonic() < deadline:
            self._local.copy_output(_POLL_SECONDS)
        self._end(None)

    def _fresh_addresses(self) -> tuple[str, ...]:
        """Returns an unused address for each process that this host can run."""
        name = "localhost"
        if self._addresses:
            name = split_address(self._addresses[self._host], "address")[0]
        return tuple(f"{name}:{free_port()}" for _ in range(self._spec.num_processes))

    def _show(self, order: Order) -> None:
        """Prints the notices that are new."""
        for key, text in order.notices:
            if key not in self._shown:
                self._shown.add(key)
                print(f"t2tp_launch: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _ended_processes(self) -> Iterator[None]:
        """Leaves no process behind."""
        try:
            yield
        finally:
            self._end(None)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Forwards SIGINT and SIGTERM to the processes, and notes that this host leaves."""

        def note(number: int, frame: FrameType | None) -> None:
            self._signalled_at = self._signalled_at or time.monotonic()
            self._report = replace(self._report, leaves=number)
            if self._report.is_running:
                self._is_asked_to_save = True
                self._local.signal(number)

        before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _grace(outcome: Outcome) -> float:
    """Returns how long the other processes may go on after an outcome, in seconds."""
    if outcome.code in (0, *STOPPED):
        return _SAVE_SECONDS
    if outcome.is_consequence or outcome.code in HOPELESS:
        return _CONSEQUENCE_SECONDS
    return _REPORT_SECONDS


def _threads(num_processes: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // num_processes)


def _new_launcher_id() -> str:
    return f"{time.time_ns():x}"
