"""`t2tp_launch`: starts a command as several processes of one run."""

import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from absl import flags as absl_flags

from t2tp.processes.process_spec import parse_tf_config, split_address
from t2tp.trainer.errors import SIGNALLED, UsageError, as_usage_error
from t2tp.trainer.processes import children
from t2tp.trainer.processes.local_processes import LocalProcesses, environments_of, visible_gpus

NO_SUCH_COMMAND = 127  # As in shells.


def run(flags: absl_flags.FlagValues, *command: str) -> int:
    """Starts the processes and waits for them.

    Returns:
      The exit code of `run_rounds`, or `NO_SUCH_COMMAND` if the command cannot be started.
    """
    count, devices = flags.num_processes, flags.devices_per_process
    with as_usage_error(ValueError):
        hosts, host_id = hosts_of(flags.hosts, flags.host_id)
    environments = functools.partial(
        environments_of, count, devices, os.environ, visible_gpus(), hosts, host_id
    )
    try:
        return run_rounds(command, environments, host_id * count, flags.max_restarts)
    except OSError as error:
        print(f"t2tp_launch: {command[0]}: {error.strerror}", file=sys.stderr)
        return NO_SUCH_COMMAND


# Exit codes after which a restart cannot help: wrong usage, or no such command (126, 127).
_HOPELESS = (UsageError.exit_code, 126, 127)


# Launchers of several hosts do not talk to each other. When a process is lost, the processes of all
# hosts end. Each launcher restarts its host's processes, which connect to process 0 again.
def run_rounds(
    command: Sequence[str],
    environments: Callable[[], list[dict[str, str]]],
    first: int = 0,
    max_restarts: int = 0,
    local: LocalProcesses | None = None,
) -> int:
    """Runs a command in several processes until they succeed or fail for good.

    A run that a signal stopped is not restarted. If only another host received the signal, the exit
    code of this host's processes shows it.

    `environments` returns the environments of a round's processes. `first` is the index of this
    host's first process in the run.

    Returns:
      The exit code of the process that `LocalProcesses.wait` chooses in the last round; 0 if none
      failed.

    Raises:
      OSError: the command cannot be started.
    """
    local = local or LocalProcesses()
    with children.forwarded_signals(local.processes) as received:
        try:
            for restarts in itertools.count(1):
                local.start(command, environments(), first)
                if received:  # The signal came between two rounds.
                    local.signal(received[-1])
                outcome = local.wait()
                stopped = outcome.code in {SIGNALLED + each for each in children.stop_signals()}
                if received or stopped or outcome.code in (0, *_HOPELESS) or not max_restarts:
                    break
                if restarts > max_restarts:
                    _say(f"{outcome}, after {max_restarts} restarts: the run ends.")
                    break
                _say(f"{outcome}: restart {restarts} of {max_restarts}, from the last checkpoint.")
        finally:
            local.kill()
    return outcome.code


def _say(text: str) -> None:
    print(f"t2tp_launch: {text}", file=sys.stderr, flush=True)


# Matches `node[07-12,15]`.
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")

# Kubernetes' Indexed Jobs and Slurm set these environment variables to the index of the host.
_INDEX_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parses a list of hosts in Slurm's notation, with ports; returns each host's `host:port`.

    Examples are `node[07-12,15],other1:8476` and `run-[0-3].run:8476`. Hosts without a port get the
    last host's port.

    Raises:
      ValueError: the list cannot be parsed, a host has no port, or a host is named twice.
    """
    parts = filter(None, re.split(r",(?![^\[]*\])", text))  # At commas outside of brackets.
    names = [name for part in parts for name in _expanded(part, text)]
    port = names[-1].rpartition(":")[2] if names else ""
    addresses = [name if ":" in name else f"{name}:{port}" for name in names]
    for address in addresses:
        split_address(address, f"--hosts={text}: an address")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"--hosts={text} names a host twice.")
    return tuple(addresses)


def hosts_of(
    hosts: str, host_id: int | None, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[str, ...], int]:
    """Returns the addresses of all hosts and the index of this host; `((), 0)` for a single host.

    Without `--hosts`, the hosts are the tasks of TF_CONFIG. Without `--host_id`, the index comes
    from TF_CONFIG, Kubernetes or Slurm.

    Raises:
      ValueError: flags and environment contradict each other, or the index is not known.
    """
    tasks: tuple[str, ...] = ()
    index: int | None = None
    if environment.get("TF_CONFIG"):
        tasks, index = parse_tf_config(environment["TF_CONFIG"])
    addresses = parse_hosts(hosts) if hosts else tasks
    if len(addresses) < 2:
        if host_id:
            raise ValueError(f"--host_id={host_id} needs --hosts, the addresses of all hosts.")
        return (), 0
    if host_id is None:
        host_id = index
    for name in _INDEX_VARIABLES:
        if host_id is None and environment.get(name, "").isdecimal():
            host_id = int(environment[name])
    if host_id is None:
        raise ValueError(
            "--host_id is missing: the index of this host in --hosts, from 0 (it can also come from"
            f" TF_CONFIG, {' or '.join(_INDEX_VARIABLES)})."
        )
    if not 0 <= host_id < len(addresses):
        raise ValueError(
            f"--host_id is {host_id}; with {len(addresses)} hosts it is one of 0 to"
            f" {len(addresses) - 1}."
        )
    return addresses, host_id


def _expanded(part: str, text: str) -> list[str]:
    """Returns the names that `node[07-09]` stands for."""
    match = _BRACKETS.fullmatch(part)
    if match is None:
        if "[" in part or "]" in part:
            raise ValueError(f"--hosts={text}: {part!r} is not like node[1-4]:8476.")
        return [part]
    before, ranges, after = match.groups()
    names = []
    for each in ranges.split(","):
        ends = _RANGE.fullmatch(each)
        if ends is None:
            raise ValueError(f"--hosts={text}: {each!r} is not like 1-4.")
        first, last = ends[1], ends[2] or ends[1]
        names += [
            f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)
        ]
    return names
