"""`t2tp_launch`: starts a command as several processes of one run."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path

from absl import flags as absl_flags

from t2tp.processes.loopback import is_loopback
from t2tp.processes.messages import SECRET_VARIABLE
from t2tp.scratch_directory import scratch_directory
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.processes import children
from t2tp.trainer.processes.addresses import hosts_of
from t2tp.trainer.processes.leader import Policy
from t2tp.trainer.processes.local_processes import (
    LocalProcesses,
    check_gpus,
    environments_of,
    visible_gpus,
)
from t2tp.trainer.processes.plan import parse_meshes
from t2tp.trainer.processes.supervisor import HostSpec, Supervisor

NO_SUCH_COMMAND = 127  # As in shells.

# A file system in memory, which outlives processes and not the host.
_MEMORY = Path("/dev/shm")


def run(invocation: Invocation) -> int:
    """Starts the processes and waits for them.

    Returns:
      The exit code of the first process that failed; 0 if none did.

    Raises:
      UsageError: there are too few GPUs, or flags contradict each other.
    """
    flags = invocation.flags
    with as_usage_error(ValueError):
        addresses, host = hosts_of(flags.hosts, flags.host_id)
        num_processes = flags.num_processes * max(1, len(addresses))
        meshes = parse_meshes(flags.meshes, num_processes)
        gpus = visible_gpus()
        check_gpus(flags.num_processes, flags.devices_per_process, gpus)
        environment = _environment(addresses)
    try:
        if not addresses and not flags.max_restarts and not meshes:
            return _run_once(invocation, gpus)
        policy = Policy(
            max(1, len(addresses)), num_processes, flags.max_restarts, meshes, flags.host_timeout
        )
        memory = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
        with scratch_directory(memory, "t2tp-launch-") as directory, as_usage_error(ValueError):
            spec = HostSpec(
                invocation.arguments,
                flags.num_processes,
                flags.devices_per_process,
                gpus,
                environment,
                directory,
            )
            return Supervisor(host, addresses, policy, spec).run()
    except OSError as error:
        print(f"t2tp_launch: {invocation.arguments[0]}: {error.strerror}", file=sys.stderr)
        return NO_SUCH_COMMAND


def _run_once(invocation: Invocation, gpus: list[str]) -> int:
    """Starts processes on this host and waits for them; see `run`."""
    flags: absl_flags.FlagValues = invocation.flags
    environments = environments_of(flags.num_processes, flags.devices_per_process, os.environ, gpus)
    launched = LocalProcesses()
    with children.forwarded_signals(launched.processes):
        launched.start(invocation.arguments, environments)
        return launched.wait()


def _environment(addresses: tuple[str, ...]) -> dict[str, str]:
    """Returns the environment of the processes, with the secret of the run.

    Raises:
      ValueError: there are several hosts and no secret.
    """
    if not os.environ.get(SECRET_VARIABLE) and not all(map(is_loopback, addresses)):
        raise ValueError(
            f"Launchers of several hosts need a secret, by which they know each other: set"
            f" {SECRET_VARIABLE} to the same random text at all of them, such as what"
            " `openssl rand -hex 16` prints."
        )
    secret = "" if addresses else secrets.token_hex(16)
    return {SECRET_VARIABLE: secret, **os.environ}
