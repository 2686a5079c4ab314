"""`t2tp_launch`: starts a command as several processes of one run, on this host."""

from __future__ import annotations

import argparse
import ctypes
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
from types import FrameType
from typing import IO, TextIO

from t2tp.mesh.meeting import free_port
from t2tp.mesh.messages import SECRET_VARIABLE
from t2tp.mesh.processes import DEVICES_VARIABLE, THREADS_VARIABLE
from t2tp.trainer.flag_groups import version

WRONG_USAGE = 2
NO_SUCH_COMMAND = 127  # As shells have it.

# After one process has failed, the others find out by themselves, and say what they know.
ENDING_SECONDS = 40.0
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# How our programs say why they end; each process of a run may find the same.
_SENTENCE = re.compile(r"(?P<program>t2tp_\w+): process \d+ of \d+: (?P<sentence>.*)")
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, without the program's name; by default this process's.

    Returns:
      the exit code of the first process that failed; 0 if none did.
    """
    options = _parser().parse_args(arguments)
    try:
        environments = environments_of(
            options.num_processes, options.devices_per_process, os.environ, visible_gpus()
        )
    except ValueError as error:
        print(f"t2tp_launch: {error}", file=sys.stderr)
        return WRONG_USAGE
    try:
        return _Launched([options.command, *options.arguments], environments).wait()
    except OSError as error:
        print(f"t2tp_launch: {options.command}: {error.strerror}", file=sys.stderr)
        return NO_SUCH_COMMAND


def environments_of(
    num_processes: int,
    devices_per_process: int | None,
    environment: Mapping[str, str],
    gpus: Sequence[str],
) -> list[dict[str, str]]:
    """The environment of each process, which says who it is, which GPUs it uses, and, unless
    somebody has said it already, its share of the cores (together they are to use all of them once)
    and the secret by which they know each other.

    Args:
      num_processes: how many there are.
      devices_per_process: how many devices each brings; by default, as many GPUs as there are for
        each, or as many virtual CPU devices as its share of the mesh.
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
        own = {THREADS_VARIABLE: str(share), SECRET_VARIABLE: secret, **environment}
        own["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        if devices_per_process is not None:
            own[DEVICES_VARIABLE] = str(devices_per_process)
        if gpus:
            first = process_id * each
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + each])
        environments.append(own)
    return environments


def visible_gpus() -> list[str]:
    """Ids of the NVIDIA GPUs that processes on this host may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu not in ("", "-1")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # There is no driver, so there is no GPU.
        return []
    return listed.stdout.split()


class _Launched:
    """The processes that run.

    All happens in one thread: the kernel tells the processes of the launcher's death each time that
    a thread that is their parent ends, and a second SIGTERM would end them unsaved.
    """

    def __init__(self, command: Sequence[str], environments: Sequence[dict[str, str]]) -> None:
        """Starts them, in sessions of their own: a terminal's Ctrl-C reaches them through us.

        Raises:
          OSError: the command cannot be started.
        """
        self._processes: list[subprocess.Popen] = []
        self._outputs = selectors.DefaultSelector()
        said: set[str] = set()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._pass_on)
        for process_id, environment in enumerate(environments):
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_end_with_the_launcher,
            )
            self._processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                self._outputs.register(
                    source, selectors.EVENT_READ, _Lines(f"[{process_id}] ", source, target, said)
                )

    def wait(self) -> int:
        """Waits for all; if one fails, ends those that do not end by themselves.

        Returns:
          the exit code of the first that failed; 128 + n if signal n ended it.
        """
        failed: int | None = None
        deadline = float("inf")
        stop = signal.SIGTERM
        while None in (codes := [process.poll() for process in self._processes]):
            if failed is None and any(codes):
                failed = next(code for code in codes if code)
                deadline = time.monotonic() + ENDING_SECONDS
            if time.monotonic() > deadline:
                self._pass_on(stop)
                stop = signal.SIGKILL
                deadline = time.monotonic() + KILL_SECONDS
            self._copy(_POLL_SECONDS)
        if failed is None:
            failed = next((code for code in codes if code), 0)
        while self._outputs.get_map():
            self._copy(None)
        return failed if failed >= 0 else 128 - failed

    def _pass_on(self, number: int, frame: FrameType | None = None) -> None:
        """Sends a signal to all processes that are still there."""
        for process in self._processes:
            process.send_signal(number)

    def _copy(self, seconds: float | None) -> None:
        """Copies what the processes have written; waits for it, if need be without end."""
        if not self._outputs.get_map():
            time.sleep(seconds or 0.0)
        for key, _ in self._outputs.select(seconds):
            if not key.data.copy():
                self._outputs.unregister(key.fileobj)


class _Lines:
    """Copies what one process writes, line by line, each with the same prefix.

    A sentence with which a program of ours ends is copied once: `said` holds those that were, of
    all processes.
    """

    def __init__(self, prefix: str, source: IO[bytes], target: TextIO, said: set[str]) -> None:
        self._said = said
        self._prefix = prefix
        self._source = source
        self._target = target
        self._unfinished = b""

    def copy(self) -> bool:
        """Copies what has been written since; whether more may come."""
        data = os.read(self._source.fileno(), 65536)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if not data and self._unfinished:
            lines.append(self._unfinished)
        for line in lines:
            text = line.decode(errors="replace")
            if not self._is_said(text):
                print(f"{self._prefix}{text}", file=self._target, flush=True)
        return bool(data)

    def _is_said(self, line: str) -> bool:
        """Whether another process has ended with the same sentence; notes it if none has."""
        ending = _SENTENCE.fullmatch(line)
        if ending is None:
            return False
        sentence = "{program}: {sentence}".format(**ending.groupdict())
        is_said = sentence in self._said
        self._said.add(sentence)
        return is_said


def _end_with_the_launcher() -> None:
    """Asks the kernel to send SIGTERM to this process when its parent dies, even of SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="t2tp_launch",
        description="Starts a command as several processes of one run, on this host.",
        epilog="Example: t2tp_launch -n 4 t2tp_trainer --mesh_shape='data:2;model:2' ...",
    )
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument(
        "-n",
        "--num_processes",
        type=_positive,
        required=True,
        help="how many processes to start",
    )
    parser.add_argument(
        "--devices_per_process",
        type=_positive,
        help="how many devices each brings to the mesh (default: its share of the GPUs of this"
        " host, or of the mesh if there are none)",
    )
    parser.add_argument("command", help="the command to start")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
