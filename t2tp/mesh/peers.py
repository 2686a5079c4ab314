"""The other processes of a run: meets them, and finds out which of them is gone.

All of it rests on TensorFlow's coordination service, which process 0 serves: its heartbeats find a
process that died or was stopped and abort the collectives of all others, and its store of keys and
values carries what processes tell each other. (Its own barrier blocks the whole interpreter, so
ours is made of keys.)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context as eager_context

from t2tp.mesh.loopback import accept_only_loopback, is_loopback
from t2tp.mesh.meeting import LOST_EXIT_CODE, MissingProcessError
from t2tp.mesh.processes import split_address

JOB = "worker"
# A machine may be frozen for some seconds (10 are TensorFlow's default, and were too few).
HEARTBEAT_SECONDS = 30
# How long a process that lost another one may take to end by itself.
ENDING_SECONDS = 20.0
LEAVING_SECONDS = 30.0

# A key that is always there: whoever can read it knows that process 0 answers, and its value is
# what was announced last. (To wait for a key that is not there costs process 0 memory each time.)
_PULSE = "pulse"
_WATCH_SECONDS = 2.0
_REPORT_SECONDS = 3.0  # For the others to say what became of them.
_SILENCE_SECONDS = 20.0  # Of process 0, after which it is taken for gone.


class Peers:
    """This process's link to the others.

    Attributes:
      process_id: number of this process.
      addresses: `host:port` of each process.
      advice: makes a sentence for whoever reads that a process is gone: how to go on.
      notice: what was announced last, by any process.
    """

    def __init__(self, process_id: int, addresses: Sequence[str], nccl: bool) -> None:
        """Starts TensorFlow as one of the processes; all of them do it at the same time.

        Args:
          process_id: number of this process.
          addresses: `host:port` of each process.
          nccl: whether collectives run on GPUs.

        Raises:
          ValueError: TensorFlow has started up already, or cannot serve at this address.
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
        self._start(nccl)
        if all(map(is_loopback, self.addresses)):
            self._keep_other_hosts_away()
        if process_id == 0:
            self._set(_PULSE, "")
        threading.Thread(target=self._watch, name="peers", daemon=True).start()
        atexit.register(self._leave)

    @property
    def num_processes(self) -> int:
        """How many processes there are."""
        return len(self.addresses)

    def exchange(self, name: str, value: str, seconds: float) -> list[str]:
        """What each process says; nobody returns before all have come.

        Args:
          name: what it is about, the same in all processes, which come to all exchanges of one name
            in the same order.
          value: what this process says.
          seconds: how long to wait for the others.

        Returns:
          what was said, in the order of the processes.

        Raises:
          MissingProcessError: names the processes that did not come.
        """
        self._counts[name] += 1
        place = f"exchange/{name}/{self._counts[name]}"
        deadline = time.monotonic() + seconds
        with self._others_needed():
            if self.process_id:
                self._set(f"{place}/{self.process_id}", value)
                return json.loads(self._wait(f"{place}/all", deadline, f"at {name!r}"))
            said = [value]
            for peer in range(1, self.num_processes):
                said.append(self._wait(f"{place}/{peer}", deadline, f"at {name!r}", peer))
                self._delete(f"{place}/{peer}")
            self._set(f"{place}/all", json.dumps(said))
            # Whoever is here has left the one before.
            self._delete(f"exchange/{name}/{self._counts[name] - 1}/all")
        return said

    def announce(self, text: str) -> None:
        """Shows all processes a text, as their `notice`, within some seconds.

        It takes the place of the one before. Of several that are announced at the same time, one is
        shown. Nobody is told if process 0 is gone.
        """
        with contextlib.suppress(tf.errors.OpError):  # Another process may announce now, too.
            self._delete(_PULSE)
            self._set(_PULSE, text)

    def report(self, kind: str, what: Any) -> None:
        """Tells the others that this process cannot go on; their collectives fail at once.

        Args:
          kind: `failed` if the fault is here, `waited` if others did not come.
          what: for `failed` a sentence, for `waited` the collective in which each processor was.
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
            pass  # Process 0 is gone, which the others find out as we did.

    def reports(self) -> dict[int, tuple[str, Any]]:
        """What the other processes reported, by process; waits a little for them."""
        deadline = time.monotonic() + _REPORT_SECONDS
        found = {}
        for peer in self._others():
            left = max(1, int(1000 * (deadline - time.monotonic())))
            try:
                text = self._context.get_config_key_value(_key(f"report/{peer}"), left)
                found[peer] = tuple(json.loads(text))
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:  # Process 0, which would know, is gone.
                break
        return found

    def explain(self) -> str | None:
        """Says which other processes failed, are gone or do not answer; None if none does."""
        if self._lost is not None:
            return self._lost
        reports = self.reports()
        said = [
            f"{self.name(peer)} failed: {what}"
            for peer, (kind, what) in reports.items()
            if kind == "failed"
        ]
        if not said:
            others = [peer for peer in self._others() if peer not in reports]
            with ThreadPoolExecutor(64) as threads:
                alive = threads.map(serves, [self.addresses[peer] for peer in others])
                gone = [peer for peer, there in zip(others, alive, strict=True) if not there]
            said = [f"{self.name(peer)} is gone" for peer in gone]
            if 0 not in gone:
                silent = [peer for peer in self._silent() if peer in others and peer not in gone]
                said += [f"{self.name(peer)} does not answer" for peer in silent]
        return f"{'; '.join(said)}." if said else None

    def missing(self, text: str) -> MissingProcessError:
        """An error for the user, with the advice how to go on."""
        return MissingProcessError(f"{text} {self.advice()}".rstrip())

    def name(self, peer: int) -> str:
        """A process for people."""
        return f"Process {peer} of {self.num_processes} ({self.addresses[peer]})"

    def _start(self, nccl: bool) -> None:
        """Starts TensorFlow's server, collectives and coordination service."""
        leader = f"/job:{JOB}/replica:0/task:0"
        try:
            self._context.configure_collective_ops(
                collective_leader=leader, use_nccl_communication=nccl
            )
        except RuntimeError as error:
            raise ValueError(
                "TensorFlow has started up already, as the only process: connect to the others"
                " before running any TensorFlow operation."
            ) from error
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

    def _keep_other_hosts_away(self) -> None:
        """Makes TensorFlow's server, which takes requests from anyone, deaf to other hosts."""
        own = self.addresses[self.process_id]
        try:
            accept_only_loopback(split_address(own, "address")[1])
        except OSError as error:
            logging.warning(
                "TensorFlow's server at %s can be reached from other hosts, and whoever reaches it"
                " can read and write this user's files: %s.",
                own,
                error.strerror or error,
            )

    def _watch(self) -> None:
        """Looks after the others; if some are gone, frees this process's collectives and ends it.

        It ends by itself if it is in a collective or at a barrier; but it may be in anything else.
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
            if self._lost is not None:  # Again and again: a step that begins now has to end, too.
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
        """Whether the next process is there.

        A process that died leaves a host that refuses connections, which is noticed long before
        its heartbeats are missed.
        """
        neighbour = self.addresses[(self.process_id + 1) % self.num_processes]
        return serves(neighbour, otherwise=True)

    def _leave(self) -> None:
        """At the end of the program: waits for the others, which may need process 0 till then."""
        error = getattr(sys, "last_value", None)
        if error is not None:  # It was not caught.
            self.report("failed", in_a_line(error))
        if not self._reported and self._lost is None:
            with contextlib.suppress(MissingProcessError):
                self.exchange("leave", "", LEAVING_SECONDS)
        self._leaving.set()

    def _wait(self, key: str, deadline: float, where: str, peer: int = 0) -> str:
        """The value of a key that another process sets."""
        while True:
            left = deadline - time.monotonic()
            try:
                wait = min(left, _WATCH_SECONDS)
                return self._context.get_config_key_value(_key(key), max(1, int(1000 * wait)))
            except tf.errors.DeadlineExceededError:
                if self._lost is not None:
                    raise self.missing(self._lost) from None
                if left <= 0:
                    text = f"{self.name(peer)} did not come in time {where}."
                    raise self.missing(self.explain() or text) from None

    @contextlib.contextmanager
    def _others_needed(self) -> Iterator[None]:
        """While this is active, what the service cannot do is the fault of a process that left."""
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
        return [peer for peer in range(self.num_processes) if peer != self.process_id]

    def _leader_answers(self) -> bool:
        try:
            self.notice = self._context.get_config_key_value(
                _key(_PULSE), int(1000 * _WATCH_SECONDS)
            )
        except tf.errors.OpError:
            return False
        return True

    def _states(self) -> list[tf.errors.OpError | None]:
        """What the coordination service knows of each process: None if it is well.

        It blocks the interpreter until process 0 answers.
        """
        try:
            return self._context.get_task_states([(JOB, self.num_processes)])
        except tf.errors.OpError:
            return []

    def _silent(self) -> list[int]:
        """The processes whose heartbeats have stopped."""
        if not self._leader_answers():
            return [0]
        states = enumerate(self._states())
        return [peer for peer, state in states if isinstance(state, tf.errors.UnavailableError)]


def in_a_line(error: BaseException) -> str:
    """An exception in a line; of TensorFlow's, what comes after where in the graph it was."""
    paragraph = str(error).strip().rpartition("\n\n")[2]
    return f"{type(error).__name__}: {paragraph.partition(chr(10))[0]}"


def _key(name: str) -> str:
    return f"t2tp/{name}"


def serves(address: str, otherwise: bool = False) -> bool:
    """Whether somebody listens at an address.

    Args:
      address: `host:port`.
      otherwise: what to say if that cannot be found out.
    """
    try:
        socket.create_connection(split_address(address, "address"), timeout=2.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return otherwise
    return True
