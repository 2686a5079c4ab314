"""Starts the processes of one host, copies their output, and ends them after a failure."""

import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TextIO

from t2tp.processes import process_spec
from t2tp.processes.messages import SECRET_VARIABLE
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.errors import SIGNALLED, UsageError
from t2tp.trainer.processes import children

_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 2.0
# Makes TensorFlow allocate tensors with its BFC allocator, as on GPUs, without a practical limit.
# glibc before 2.38 cannot reuse a freed block for an aligned block of the same size, so holes
# remain between tensors: a stage of a pipeline held 6 to 14 % more memory, and a step took 1,700
# page faults instead of 84. The other variables turn off oneDNN's pool, and glibc's extra arenas
# and caches, which would also hold freed blocks.
ALLOCATOR = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(1 << 30),
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}
# Matches an error of a t2tp program. Several processes of a run may report the same error.
_SENTENCE = re.compile(r"(?P<program>t2tp_\w+): process \d+ of \d+: (?P<sentence>.*)")


@dataclass(frozen=True)
class ProcessOutcome:
    """How the processes of a host ended.

    Attributes:
      code: exit code of the process that `LocalProcesses.wait` chooses; 128 + n if signal n ended
        the process. 0: no process failed.
      process: index of the failed process in the run.
    """

    code: int
    process: int = 0

    def __str__(self) -> str:
        """Returns a clause such as `process 1 was killed by signal 9`."""
        if self.code > SIGNALLED:
            return f"process {self.process} was killed by signal {self.code - SIGNALLED}"
        return f"process {self.process} failed with exit code {self.code}"


def environments_of(
    num_processes: int,
    devices_per_process: int | None,
    environment: Mapping[str, str],
    gpus: Sequence[str],
    hosts: Sequence[str] = (),
    host_id: int = 0,
) -> list[dict[str, str]]:
    """Returns the environment of each process of this host.

    The environment sets the cluster (TF_CONFIG) and the GPUs of the process. Unless the number of
    threads is already set, each process gets an equal share of the host's cores. Without GPUs the
    result also configures the heap, unless `environment` does so already (`MALLOC_...`,
    `GLIBC_TUNABLES`).

    Args:
      num_processes: number of processes of each host.
      devices_per_process: by default an equal share of the GPUs or, without GPUs, of the virtual
        CPU devices that the mesh needs.
      environment: environment of this process.
      gpus: ids of the GPUs of this host.
      hosts: `host:port` of each host. The host's processes listen at this port and the following
        ports. Default: this host alone, with a new secret and ports that no other host can reach.
      host_id: index of this host.

    Raises:
      UsageError: this host has GPUs, but too few for its processes.
    """
    each = devices_per_process or len(gpus) // num_processes
    if gpus and not 0 < each * num_processes <= len(gpus):
        raise UsageError(
            f"{num_processes} processes with {max(1, each)} GPUs each need"
            f" {num_processes * max(1, each)}, and there are {len(gpus)}: start fewer processes, or"
            " give each fewer with --devices_per_process."
        )
    if hosts:
        pairs = [process_spec.split_address(each, "address") for each in hosts]
        addresses = [f"{host}:{port + i}" for host, port in pairs for i in range(num_processes)]
    else:
        addresses = [f"localhost:{free_port()}" for _ in range(num_processes)]
        environment = {SECRET_VARIABLE: secrets.token_hex(16), **environment}
    share = max(1, len(os.sched_getaffinity(0)) // num_processes)
    environments = []
    for number in range(num_processes):
        task = {"type": "worker", "index": host_id * num_processes + number}
        variables = {process_spec.THREADS_VARIABLE: str(share), **environment}
        heap = ("MALLOC_", "GLIBC_TUNABLES")
        if not gpus and not any(name.startswith(heap) for name in environment):
            variables = {**ALLOCATOR, **variables}
        variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        if devices_per_process is not None:
            variables[process_spec.DEVICES_VARIABLE] = str(devices_per_process)
        if gpus:
            first = number * each
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + each])
        environments.append(variables)
    return environments


def visible_gpus() -> list[str]:
    """Returns the ids of the NVIDIA GPUs that processes on this host may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu not in ("", "-1")]
    try:
        output = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # No driver, so no GPU.
        return []
    return output.stdout.split()


class LocalProcesses:
    """The processes of this host and their output.

    Call all methods in one thread, and do not end this thread before the children end: the kernel
    sends SIGTERM to the children of a thread that ends. A child that is saving because of an
    earlier signal would end at this second signal without finishing the save.
    """

    def __init__(self, ending_seconds: float = 40.0, kill_seconds: float = 10.0) -> None:
        """Sets the time limits after a failure.

        Args:
          ending_seconds: max time, after the first failure, for the other processes to end.
          kill_seconds: max time between SIGTERM and SIGKILL for processes that do not end.
        """
        self.processes: list[subprocess.Popen] = []
        self._ending_seconds = ending_seconds
        self._kill_seconds = kill_seconds
        self._first = 0
        self._outputs = selectors.DefaultSelector()
        self._failures: dict[int, ProcessOutcome] = {}  # By index in `processes`, oldest first.

    def start(
        self, command: Sequence[str], environments: Sequence[dict[str, str]], first: int = 0
    ) -> None:
        """Starts a process in each environment; earlier processes must have ended.

        `first` is the index of this host's first process in the run.

        Raises:
          OSError: the command cannot be started.
        """
        reported: set[str] = set()
        self.processes.clear()
        self._failures, self._first = {}, first
        for process_id, environment in enumerate(environments, start=first):
            process = children.start(
                command,
                self.processes,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                lines = _OutputLines(f"[{process_id}] ", source, target, reported)
                self._outputs.register(source, selectors.EVENT_READ, lines)

    def wait(self) -> ProcessOutcome:
        """Waits for all processes; after a failure, ends the processes that do not exit in time.

        Returns:
          The outcome of the first process that failed for a reason other than the loss of another
          process. If there is no such process, the outcome of the first process that failed.
        """
        deadline = float("inf")
        stop = signal.SIGTERM
        while self._are_running():
            if self._failures and deadline == float("inf"):
                deadline = time.monotonic() + self._ending_seconds
            if time.monotonic() > deadline:
                self.signal(stop)
                stop = signal.SIGKILL
                deadline = time.monotonic() + self._kill_seconds
            self._copy_output()
        deadline = time.monotonic() + _DRAIN_SECONDS
        # Children of the processes may hold the pipes open for a long time.
        while self._outputs.get_map() and time.monotonic() < deadline:
            self._copy_output()
        for key in list(self._outputs.get_map().values()):
            self._outputs.unregister(key.fileobj)
        outcomes = list(self._failures.values())
        causes = [each for each in outcomes if each.code != process_spec.LOST_EXIT_CODE]
        return (causes or outcomes or [ProcessOutcome(0)])[0]

    def kill(self) -> None:
        """Ends all processes immediately."""
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _are_running(self) -> bool:
        codes = [process.poll() for process in self.processes]
        for position, code in enumerate(codes):
            if code:
                outcome = ProcessOutcome(children.exit_code(code), self._first + position)
                self._failures.setdefault(position, outcome)
        return None in codes

    def signal(self, number: int) -> None:
        """Sends a signal to all running processes."""
        for process in self.processes:
            process.send_signal(number)

    def _copy_output(self) -> None:
        if not self._outputs.get_map():
            time.sleep(_POLL_SECONDS)
        for key, _ in self._outputs.select(_POLL_SECONDS):
            if not key.data.copy():
                self._outputs.unregister(key.fileobj)


class _OutputLines:
    """The output of one process, copied line by line with a prefix.

    An error that several processes report is copied once: `reported`, the set of errors copied so
    far, is shared by the outputs of all processes.
    """

    def __init__(self, prefix: str, source: IO[bytes], target: TextIO, reported: set[str]) -> None:
        self._reported = reported
        self._prefix = prefix
        self._source = source
        self._target = target
        self._unfinished = b""

    def copy(self) -> bool:
        """Copies new lines; returns whether more output may come."""
        data = os.read(self._source.fileno(), 65536)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if not data and self._unfinished:
            lines.append(self._unfinished)
        for line in lines:
            text = line.decode(errors="replace")
            if not self._is_reported(text):
                print(f"{self._prefix}{text}", file=self._target, flush=True)
        return bool(data)

    def _is_reported(self, line: str) -> bool:
        """Whether another process has reported the same error; records the error if none has."""
        ending = _SENTENCE.fullmatch(line)
        if ending is None:
            return False
        sentence = "{program}: {sentence}".format(**ending.groupdict())
        is_said = sentence in self._reported
        self._reported.add(sentence)
        return is_said
