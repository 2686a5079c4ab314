"""The processes of one host: their environment, their output, their end."""

from __future__ import annotations

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
from typing import IO, TextIO

from t2tp.processes.messages import SECRET_VARIABLE
from t2tp.processes.process_spec import DEVICES_VARIABLE, THREADS_VARIABLE
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.errors import SIGNALLED
from t2tp.trainer.processes import children
from t2tp.trainer.processes.crashes import Outcome

# After a process has failed, the others get this long to notice it and report what they know.
ENDING_SECONDS = 40.0
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 2.0
# A process allocates from one heap, glibc's. oneDNN's pool, from which TensorFlow allocates, and
# glibc's arenas never give a block to each other: with them a process holds 7 to 15 % more. A block
# that is mapped by itself, and the end of a heap that is given back, cost page faults each step.
# Alignment leaves small blocks between tensors. Freed, they would go to glibc's cache of each
# thread, where they keep free neighbours from becoming one block, so the cache is off: with it a
# process holds 13 to 31 % more.
ONE_HEAP = {
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 24),
}
# An error of our programs, which several processes of a run may report in the same words.
_SENTENCE = re.compile(r"(?P<program>t2tp_\w+): process \d+ of \d+: (?P<sentence>.*)")


def single_host_addresses(num_processes: int) -> list[str]:
    """Returns an address on this host for each process, which no other host can reach."""
    return [f"localhost:{free_port()}" for _ in range(num_processes)]


def check_gpus(num_processes: int, devices_per_process: int | None, gpus: Sequence[str]) -> None:
    """Checks that there are enough GPUs for the processes of this host, if there are any.

    Raises:
      ValueError: there are too few.
    """
    each = devices_per_process or len(gpus) // num_processes
    if gpus and not 0 < each * num_processes <= len(gpus):
        raise ValueError(
            f"{num_processes} processes with {max(1, each)} GPUs each need"
            f" {num_processes * max(1, each)}, and there are {len(gpus)}: start fewer processes, or"
            " give each fewer with --devices_per_process."
        )


def environments_of(
    num_processes: int,
    devices_per_process: int | None,
    environment: Mapping[str, str],
    gpus: Sequence[str],
) -> list[dict[str, str]]:
    """Returns the environment of each process of a run on this host alone, which meet there.

    See `round_environments`.
    """
    addresses = single_host_addresses(num_processes)
    variables = {SECRET_VARIABLE: secrets.token_hex(16), **environment}
    return round_environments(range(num_processes), addresses, devices_per_process, variables, gpus)


def round_environments(
    processes: Sequence[int],
    addresses: Sequence[str],
    devices_per_process: int | None,
    environment: Mapping[str, str],
    gpus: Sequence[str],
) -> list[dict[str, str]]:
    """Returns the environment of each process of this host.

    It sets the cluster in TF_CONFIG and the GPUs of the process and, unless it is set already, its
    number of threads: all processes of the host together use each core once. Without GPUs it also
    configures the heap, unless the environment does (`MALLOC_...` or `GLIBC_TUNABLES`).

    Args:
      processes: indices of this host's processes.
      addresses: `host:port` of each process of the run.
      devices_per_process: devices of each; by default, an equal number of the GPUs or, without
        GPUs, of the virtual CPU devices that the mesh needs.
      environment: of this process, with the secret of the run, by which its processes authenticate
        each other.
      gpus: ids of the GPUs of this host.

    Raises:
      ValueError: there are too few GPUs.
    """
    count = len(processes)
    check_gpus(count, devices_per_process, gpus)
    each = devices_per_process or len(gpus) // count
    share = max(1, len(os.sched_getaffinity(0)) // count)
    environments = []
    for number, process_id in enumerate(processes):
        task = {"type": "worker", "index": process_id}
        variables = {THREADS_VARIABLE: str(share), **environment}
        if not gpus and not any(map(_configures_heap, environment)):
            variables = {**ONE_HEAP, **variables}
        variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        if devices_per_process is not None:
            variables[DEVICES_VARIABLE] = str(devices_per_process)
        if gpus:
            first = number * each
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + each])
        environments.append(variables)
    return environments


def _configures_heap(variable: str) -> bool:
    return variable.startswith("MALLOC_") or variable == "GLIBC_TUNABLES"


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
    """The started processes and their output.

    All methods run in one thread: the kernel sends the children SIGTERM whenever the thread that
    started them ends, and a second SIGTERM would end them unsaved.

    Attributes:
      processes: the started processes.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self._indices: list[int] = []
        self._lines: list[_Lines] = []  # Of stderr, in the order of `processes`.
        self._outputs = selectors.DefaultSelector()
        self._failures: list[int] = []  # Positions of those that failed, in the order of failing.

    def start(
        self,
        command: Sequence[str],
        environments: Sequence[dict[str, str]],
        indices: Sequence[int] | None = None,
    ) -> None:
        """Starts a process in each environment; those before must have ended.

        Args:
          command: program and arguments.
          environments: of the processes.
          indices: of the processes in the run; by default from 0.

        Raises:
          OSError: the command cannot be started.
        """
        reported: set[str] = set()
        self.processes.clear()
        self._lines, self._failures = [], []
        self._indices = list(range(len(environments)) if indices is None else indices)
        for process_id, environment in zip(self._indices, environments, strict=True):
            process = children.start(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self.processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                lines = _Lines(f"[{process_id}] ", source, target, reported)
                self._outputs.register(source, selectors.EVENT_READ, lines)
            self._lines.append(lines)

    def wait(self) -> int:
        """Waits for all; after a failure, ends those that do not exit in time.

        Returns:
          The exit code of the first that failed; 128 + n if signal n ended it.
        """
        deadline = float("inf")
        stop = signal.SIGTERM
        while self.is_running:
            if self._failures and deadline == float("inf"):
                deadline = time.monotonic() + ENDING_SECONDS
            if time.monotonic() > deadline:
                self.signal(stop)
                stop = signal.SIGKILL
                deadline = time.monotonic() + KILL_SECONDS
            self.copy_output(_POLL_SECONDS)
        while self._outputs.get_map():
            self.copy_output(None)
        return self.outcome().code

    @property
    def is_running(self) -> bool:
        """Whether a process runs."""
        codes = [process.poll() for process in self.processes]
        for position, code in enumerate(codes):
            if code and position not in self._failures:
                self._failures.append(position)
        return None in codes

    @property
    def has_failed(self) -> bool:
        """Whether a process has ended with another exit code than 0; see `is_running`."""
        return bool(self._failures)

    def outcome(self) -> Outcome:
        """Returns how the processes have ended, by the first that failed of its own accord."""
        outcomes = [self._outcome_of(position) for position in self._failures]
        causes = [each for each in outcomes if not each.is_consequence]
        return (causes or outcomes or [Outcome(0)])[0]

    def signal(self, number: int) -> None:
        """Sends a signal to all running processes."""
        for process in self.processes:
            process.send_signal(number)

    def kill(self) -> None:
        """Ends all processes at once, and copies what they have written."""
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.drain()

    def drain(self) -> None:
        """Copies the rest of the output; children of the processes may hold it open for long."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._outputs.get_map() and time.monotonic() < deadline:
            self.copy_output(_POLL_SECONDS)
        for key in list(self._outputs.get_map().values()):
            self._outputs.unregister(key.fileobj)

    def copy_output(self, seconds: float | None) -> None:
        """Copies new output; waits for it at most `seconds`, or without a limit if None."""
        if not self._outputs.get_map():
            time.sleep(seconds or 0.0)
        for key, _ in self._outputs.select(seconds):
            if not key.data.copy():
                self._outputs.unregister(key.fileobj)

    def _outcome_of(self, position: int) -> Outcome:
        code = children.exit_code(self.processes[position].returncode)
        # What a killed process has said before has nothing to do with it.
        error = self._lines[position].last if code < SIGNALLED else ""
        return Outcome(code, self._indices[position], error=error)


class _Lines:
    """The output of one process, copied line by line with a prefix.

    An error that several processes of our programs report is copied once: `reported` is the set of
    those copied, shared by all processes.

    Attributes:
      last: the last line that was not empty.
    """

    def __init__(self, prefix: str, source: IO[bytes], target: TextIO, reported: set[str]) -> None:
        self._reported = reported
        self._prefix = prefix
        self._source = source
        self._target = target
        self._unfinished = b""
        self.last = ""

    def copy(self) -> bool:
        """Copies new lines; returns whether more may come."""
        data = os.read(self._source.fileno(), 65536)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if not data and self._unfinished:
            lines.append(self._unfinished)
        for line in lines:
            text = line.decode(errors="replace")
            self.last = text.strip() or self.last
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
