"""Connects the processes of a run and detects lost processes.

Process 0 serves TensorFlow's coordination service. The service's heartbeats detect a process that
died or was stopped, and abort the collectives of all other processes. The service's key-value store
carries messages between processes. (The service's barrier would block the whole Python interpreter,
so our barrier uses keys.)
"""

import atexit
import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context as eager_context

from t2tp.processes.libc_calls import sigterm_left_alone
from t2tp.processes.loopback import check_filtered, is_loopback, loopback_listeners
from t2tp.processes.process_spec import LOST_EXIT_CODE, split_address
from t2tp.processes.rendezvous import MissingProcessError

JOB = "worker"
# A process without a heartbeat for this time is lost. TensorFlow's default of 10 is too short,
# because machines may freeze for some seconds.
HEARTBEAT_SECONDS = 30
# Max time for a process to exit by itself after it lost another process, and max time to wait for
# the other processes at exit.
ENDING_SECONDS = 20.0
LEAVING_SECONDS = 30.0

_CHUNK_BYTES = 1 << 17  # Bytes of each buffer of a sent tensor.
# A key that always exists: reading it shows that process 0 answers, and its value is the latest
# announcement. (Waiting for a missing key costs process 0 memory each time.)
_PULSE = "pulse"
# Lines of TensorFlow's errors before the first line that says what is wrong.
_PREAMBLE = re.compile(r"Detected at node |<stack traces |\d+ root error")
_WATCH_SECONDS = 2.0
_REPORT_SECONDS = 3.0  # Time to wait for the reports of the other processes.
_SILENCE_SECONDS = 20.0  # If process 0 does not answer for this time, it counts as lost.


class CoordinationClient:
    """This process's client of the coordination service.

    Attributes:
      advice: function that returns a sentence on how to resume, for errors about lost processes.
      notice: the latest announcement of any process.
    """

    def __init__(self, process_id: int, addresses: Sequence[str], nccl: bool) -> None:
        """Initializes TensorFlow as one of the processes; blocks until all processes do the same.

        `nccl` tells whether collectives run on GPUs, with NCCL.

        Raises:
          RuntimeError: TensorFlow is initialized already.
          ValueError: TensorFlow cannot serve at this address.
        """
        self.process_id = process_id
        self.addresses = tuple(addresses)
        self.advice: Callable[[], str] = str
        self.notice = ""
        self._counts: Counter[str] = Counter()
        self._reported = False
        self._leaving = threading.Event()
        self._lost: str | None = None
        self._context = eager_context.context()
        with contextlib.ExitStack() as stack:
            stack.enter_context(sigterm_left_alone())
            if self.on_one_host:
                stack.enter_context(loopback_listeners())
            self._start(nccl)
        if self.on_one_host:
            self._check_other_hosts_blocked()
        if process_id == 0:
            self._set(_PULSE, "")
        threading.Thread(target=self._watch, name="coordination", daemon=True).start()
        atexit.register(self._leave)

    @property
    def num_processes(self) -> int:
        """Number of processes."""
        return len(self.addresses)

    @property
    def on_one_host(self) -> bool:
        """Whether all processes talk over the loopback interface."""
        return all(map(is_loopback, self.addresses))

    def process_allgather(self, name: str, value: str, seconds: float) -> list[str]:
        """Implements `Cluster.process_allgather`.

        Raises:
          MissingProcessError: a process has not called in time; the error names it.
        """
        self._counts[name] += 1
        prefix = f"exchange/{name}/{self._counts[name]}"
        deadline = time.monotonic() + seconds
        with self._blaming_lost_process():
            if self.process_id:
                self._set(f"{prefix}/{self.process_id}", value)
                return json.loads(self._wait(f"{prefix}/all", deadline, f"at {name!r}"))
            values = [value]
            for process in range(1, self.num_processes):
                values.append(self._wait(f"{prefix}/{process}", deadline, f"at {name!r}", process))
                self._delete(f"{prefix}/{process}")
            self._set(f"{prefix}/all", json.dumps(values))
            # Every process that has sent a value has finished the previous call.
            self._delete(f"exchange/{name}/{self._counts[name] - 1}/all")
        return values

    def announce(self, text: str) -> None:
        """Sets the `notice` of all processes within some seconds.

        Replaces the previous announcement. If several processes announce at the same time, one
        announcement wins. Does nothing if process 0 is lost.
        """
        with contextlib.suppress(tf.errors.OpError):  # Another process may announce now, too.
            self._delete(_PULSE)
            self._set(_PULSE, text)

    def report(self, kind: str, what: Any) -> None:
        """Reports that this process cannot continue; the others' collectives then fail at once.

        Args:
          kind: `failed` for an error in this process; `waited` if this process waited in vain for
            other processes.
          what: for `failed`, a sentence; for `waited`, processor -> collective in which it waited.
        """
        if self._reported or self._leaving.is_set():
            return
        self._reported = True
        try:
            self._set(f"report/{self.process_id}", json.dumps([kind, what]))
            self._context.report_error_to_cluster(
                tf.errors.ABORTED, f"process {self.process_id} cannot go on"
            )
        except tf.errors.OpError:
            pass  # Process 0 is lost; the others detect that too.

    def reports(self) -> dict[int, tuple[str, Any]]:
        """Returns the other processes' reports, by process; waits some seconds for them."""
        deadline = time.monotonic() + _REPORT_SECONDS
        received = {}
        for process in self._others():
            left = max(1, int(1000 * (deadline - time.monotonic())))
            try:
                text = self._context.get_config_key_value(_key(f"report/{process}"), left)
                received[process] = tuple(json.loads(text))
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:  # Process 0, which has the reports, is lost.
                break
        return received

    def explain(self) -> str | None:
        """Describes processes that failed, are lost or do not answer; None if there are none."""
        if self._lost is not None:
            return self._lost
        reports = self.reports()
        problems = [
            f"{self.name(process)} failed: {what}"
            for process, (kind, what) in reports.items()
            if kind == "failed"
        ]
        if not problems:
            others = [process for process in self._others() if process not in reports]
            lost = self._not_serving(others)
            problems = [f"{self.name(process)} is gone" for process in lost]
            if 0 not in lost:
                silent = sorted(set(self._silent()) & set(others) - set(lost))
                problems += [f"{self.name(process)} does not answer" for process in silent]
        return f"{'; '.join(problems)}." if problems else None

    def _not_serving(self, processes: Sequence[int]) -> list[int]:
        """Returns the processes that refuse connections or do not answer."""
        lost: set[int] = set()

        def check(process: int) -> None:
            if not serves(self.addresses[process]):
                lost.add(process)

        # These are plain threads, because `_leave` may call this method when the process exits. An
        # executor starts no threads then.
        threads = [threading.Thread(target=check, args=(each,)) for each in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(lost)

    def missing(self, text: str) -> MissingProcessError:
        """Returns an error for the user, with advice on how to resume."""
        return MissingProcessError(f"{text} {self.advice()}".rstrip())

    def name(self, process: int) -> str:
        """Names a process in messages."""
        return f"Process {process} of {self.num_processes} ({self.addresses[process]})"

    def _start(self, nccl: bool) -> None:
        """Starts TensorFlow's server, collectives and coordination service."""
        leader = f"/job:{JOB}/replica:0/task:0"
        self._context.configure_collective_ops(
            collective_leader=leader, use_nccl_communication=nccl
        )
        config = tf.compat.v1.ConfigProto()
        # By default the server copies sent tensors into strings of 4 kB. A step with weights
        # sharded over two processes took 7 % longer with this default.
        config.experimental.recv_buf_max_chunk = _CHUNK_BYTES
        # Threads that spin while they wait take cores from the processes that they wait for. With
        # spinning, a step on four processes and two cores took 4 % longer.
        config.experimental.disable_thread_spinning = not nccl
        self._context._config = config
        self._context.configure_coordination_service(
            service_type="standalone",
            service_leader=leader,
            heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
        )
        server = tf.train.ServerDef(
            cluster=tf.train.ClusterSpec({JOB: list(self.addresses)}).as_cluster_def(),
            job_name=JOB,
            task_index=self.process_id,
            protocol="grpc",
            default_session_config=self._context.config,
        )
        try:
            self._context.enable_collective_ops(server)
            self._context.ensure_initialized()
        except tf.errors.OpError as error:
            own = self.addresses[self.process_id]
            raise ValueError(
                f"Process {self.process_id} cannot serve at {own}: {error.message}. Its port may be"
                " in use."
            ) from error

    def _check_other_hosts_blocked(self) -> None:
        """Warns if other hosts can reach TensorFlow's server, which has no authentication."""
        own = self.addresses[self.process_id]
        try:
            check_filtered(split_address(own, "address")[1])
        except OSError as error:
            logging.warning(
                f"TensorFlow's server at {own} can be reached from other hosts, and whoever reaches"
                f" it can read and write this user's files: {error.strerror or error}."
            )

    def _watch(self) -> None:
        """Watches the other processes; if one is lost, aborts this process's collectives.

        In a collective or at a barrier, this process then ends by itself with an error. Elsewhere
        it is killed after `ENDING_SECONDS`.
        """
        answered = time.monotonic()
        while not self._leaving.wait(_WATCH_SECONDS):
            if self._leader_answers():
                answered = time.monotonic()
                if any(state is not None for state in self._states()):
                    break
            elif time.monotonic() - answered > _SILENCE_SECONDS:
                break
            if not self._neighbour_serves():
                break
        else:
            return
        lost = self.explain()
        if lost is not None and not self._reported:
            self._lost = lost
            self.report("waited", {})
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline:
            if self._lost is not None:  # Aborts again: new steps may have begun.
                self._context.abort_collective_ops(tf.errors.ABORTED, self._lost)
            if self._leaving.wait(_WATCH_SECONDS):
                return
        why = "This process failed." if self._reported else "The others gave it up."
        print(
            f"t2tp: {lost or why} Process {self.process_id} did not end by"
            f" itself within {ENDING_SECONDS:.0f} s, and is ended. {self.advice()}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(LOST_EXIT_CODE)

    def _neighbour_serves(self) -> bool:
        """Whether the next process accepts connections.

        The host of a dead process refuses connections, long before the service notices missing
        heartbeats.
        """
        neighbour = self.addresses[(self.process_id + 1) % self.num_processes]
        return serves(neighbour, otherwise=True)

    def _leave(self) -> None:
        """Waits at exit until all processes are about to exit, because they need process 0."""
        error = getattr(sys, "last_value", None)
        if error is not None:  # An uncaught exception ends the process.
            self.report("failed", one_line(error))
        if not self._reported and self._lost is None:
            with contextlib.suppress(MissingProcessError):
                self.process_allgather("leave", "", LEAVING_SECONDS)
        self._leaving.set()

    def _wait(self, key: str, deadline: float, where: str, process: int = 0) -> str:
        """Waits until another process sets a key, and returns the key's value."""
        while True:
            left = deadline - time.monotonic()
            try:
                wait = min(left, _WATCH_SECONDS)
                return self._context.get_config_key_value(_key(key), max(1, int(1000 * wait)))
            except tf.errors.DeadlineExceededError:
                if self._lost is not None:
                    raise self.missing(self._lost) from None
                if left <= 0:
                    text = f"{self.name(process)} did not come in time {where}."
                    raise self.missing(self.explain() or text) from None

    @contextlib.contextmanager
    def _blaming_lost_process(self) -> Iterator[None]:
        """Converts errors of the coordination service to errors that name the lost process."""
        try:
            yield
        except tf.errors.OpError as error:
            self._lost = self.explain() or f"{self.name(0)} is gone."
            raise self.missing(self._lost) from error

    def _set(self, key: str, value: str) -> None:
        self._context.set_config_key_value(_key(key), value)

    def _delete(self, key: str) -> None:
        self._context.delete_config_key_value(_key(key))

    def _others(self) -> list[int]:
        return [process for process in range(self.num_processes) if process != self.process_id]

    def _leader_answers(self) -> bool:
        try:
            self.notice = self._context.get_config_key_value(
                _key(_PULSE), int(1000 * _WATCH_SECONDS)
            )
        except tf.errors.OpError:
            return False
        return True

    def _states(self) -> list[tf.errors.OpError | None]:
        """Returns the error state of each process; None for a healthy process.

        Blocks the interpreter until process 0 answers.
        """
        try:
            return self._context.get_task_states([(JOB, self.num_processes)])
        except tf.errors.OpError:
            return []

    def _silent(self) -> list[int]:
        """Returns the processes whose heartbeats have stopped."""
        if not self._leader_answers():
            return [0]
        states = enumerate(self._states())
        return [
            process for process, state in states if isinstance(state, tf.errors.UnavailableError)
        ]


def one_line(error: BaseException) -> str:
    """Formats an exception in one line, without the graph location of TensorFlow's errors."""
    lines = str(error).strip().rpartition("\n\n")[2].splitlines()
    told = [line.strip() for line in lines if not _PREAMBLE.match(line)]
    return f"{type(error).__name__}: {''.join(told[:1])}"


def _key(name: str) -> str:
    return f"t2tp/{name}"


def serves(address: str, otherwise: bool = False) -> bool:
    """Whether a process listens at an address `host:port`; returns `otherwise` if unknown."""
    try:
        socket.create_connection(split_address(address, "address"), timeout=2.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return otherwise
    return True
