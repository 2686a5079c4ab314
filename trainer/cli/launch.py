"""`t2tp_launch`: starts a command as several processes of one run, on this host."""

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

from t2tp.mesh.messages import SECRET_VARIABLE
from t2tp.mesh.process_spec import DEVICES_VARIABLE, THREADS_VARIABLE
from t2tp.mesh.rendezvous import free_port
from t2tp.trainer import children
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import as_usage_error

NO_SUCH_COMMAND = 127  # As in shells.

# After a process has failed, the others get this long to notice it and report what they know.
ENDING_SECONDS = 40.0
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1
# An error of our programs, which several processes of a run may report in the same words.
_SENTENCE = re.compile(r"(?P<program>t2tp_\w+): process \d+ of \d+: (?P<sentence>.*)")


def run(invocation: Invocation) -> int:
    """Starts the processes and waits for them.

    Returns:
      The exit code of the first process that failed; 0 if none did.

    Raises:
      UsageError: there are too few GPUs.
    """
    flags = invocation.flags
    with as_usage_error(ValueError):
        environments = environments_of(
            flags.num_processes, flags.devices_per_process, os.environ, visible_gpus()
        )
    launched = _Launched()
    try:
        with children.forwarded_signals(launched.processes):
            launched.start(invocation.arguments, environments)
            return launched.wait()
    except OSError as error:
        print(f"t2tp_launch: {invocation.arguments[0]}: {error.strerror}", file=sys.stderr)
        return NO_SUCH_COMMAND


def environments_of(
    num_processes: int,
    devices_per_process: int | None,
    environment: Mapping[str, str],
    gpus: Sequence[str],
) -> list[dict[str, str]]:
    """Returns the environment of each process.

    It sets the cluster in TF_CONFIG and the GPUs of the process and, unless they are set already,
    its number of threads (all processes together use each core once) and the shared secret with
    which they authenticate each other.

    Args:
      num_processes: number of processes.
      devices_per_process: devices of each; by default, an equal number of the GPUs or, without
        GPUs, of the virtual CPU devices that the mesh needs.
      environment: of this process.
      gpus: ids of the GPUs of this host.

    Raises:
      ValueError: there are too few GPUs.
    """
    each = devices_per_process or len(gpus) // num_processes
    if gpus and not 0 < each * num_processes <= len(gpus):
        raise ValueError(
            f"{num_processes} processes with {max(1, each)} GPUs each need"
            f" {num_processes * max(1, each)}, and there are {len(gpus)}: start fewer processes, or"
            " give each fewer with --devices_per_process."
        )
    cluster = {"worker": [f"localhost:{free_port()}" for _ in range(num_processes)]}
    share = max(1, len(os.sched_getaffinity(0)) // num_processes)
    secret = secrets.token_hex(16)
    environments = []
    for process_id in range(num_processes):
        task = {"type": "worker", "index": process_id}
        variables = {THREADS_VARIABLE: str(share), SECRET_VARIABLE: secret, **environment}
        variables["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        if devices_per_process is not None:
            variables[DEVICES_VARIABLE] = str(devices_per_process)
        if gpus:
            first = process_id * each
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


class _Launched:
    """The started processes and their output.

    All methods run in one thread: the kernel sends the children SIGTERM whenever the thread that
    started them ends, and a second SIGTERM would end them unsaved.

    Attributes:
      processes: the started processes.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self._outputs = selectors.DefaultSelector()

    def start(self, command: Sequence[str], environments: Sequence[dict[str, str]]) -> None:
        """Starts a process in each environment.

        Raises:
          OSError: the command cannot be started.
        """
        reported: set[str] = set()
        for process_id, environment in enumerate(environments):
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
                self._outputs.register(
                    source,
                    selectors.EVENT_READ,
                    _Lines(f"[{process_id}] ", source, target, reported),
                )

    def wait(self) -> int:
        """Waits for all; after a failure, ends those that do not exit in time.

        Returns:
          The exit code of the first that failed; 128 + n if signal n ended it.
        """
        failed: int | None = None
        deadline = float("inf")
        stop = signal.SIGTERM
        while None in (codes := [process.poll() for process in self.processes]):
            if failed is None and any(codes):
                failed = next(code for code in codes if code)
                deadline = time.monotonic() + ENDING_SECONDS
            if time.monotonic() > deadline:
                self._end(stop)
                stop = signal.SIGKILL
                deadline = time.monotonic() + KILL_SECONDS
            self._copy(_POLL_SECONDS)
        if failed is None:
            failed = next((code for code in codes if code), 0)
        while self._outputs.get_map():
            self._copy(None)
        return children.exit_code(failed)

    def _end(self, number: int) -> None:
        """Sends a signal to all running processes."""
        for process in self.processes:
            process.send_signal(number)

    def _copy(self, seconds: float | None) -> None:
        """Copies new output; waits for it at most `seconds`, or without a limit if None."""
        if not self._outputs.get_map():
            time.sleep(seconds or 0.0)
        for key, _ in self._outputs.select(seconds):
            if not key.data.copy():
                self._outputs.unregister(key.fileobj)


class _Lines:
    """The output of one process, copied line by line with a prefix.

    An error that several processes of our programs report is copied once: `said` is the set of
    those copied, shared by all processes.
    """

    def __init__(self, prefix: str, source: IO[bytes], target: TextIO, reported: set[str]) -> None:
        self._reported = reported
        self._prefix = prefix
        self._source = source
        self._target = target
        self._unfinished = b""

    def copy(self) -> bool:
        """Copies new lines; returns whether more may come."""
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
