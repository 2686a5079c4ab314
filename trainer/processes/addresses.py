"""The addresses of a run's hosts, and the index of this host."""

import os
import re
from collections.abc import Mapping

from t2tp.processes.process_spec import parse_tf_config, split_address

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
    names = [name for part in _split(text) for name in _expanded(part, text)]
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


def _split(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


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
