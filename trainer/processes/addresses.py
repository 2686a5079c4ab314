"""The addresses of the launchers of a run, and which of them is this host's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from t2tp.processes.process_spec import split_address

# Of `node[07-12,15]`: node, 07-12,15, and what follows.
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")

# Variables in which schedulers say the index of a host: Kubernetes' Indexed Jobs, Slurm.
_INDEX_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parses a list of hosts as Slurm writes it, with a port.

    Args:
      text: such as `node[07-12,15],other1:8476` (the port is that of all hosts without their own)
        or `run-[0-3].run:8476`.

    Returns:
      `host:port` of each, in order.

    Raises:
      ValueError: it is not such a list, or a host has no port.
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
    """Returns the launchers' addresses and the index of this host's.

    Args:
      hosts: `--hosts`; by default the tasks of TF_CONFIG; a single host if there is neither.
      host_id: `--host_id`; by default that of TF_CONFIG, Kubernetes or Slurm.
      environment: of this process.

    Raises:
      ValueError: they contradict each other, or the index is not known.
    """
    tasks, index = _of_tf_config(environment.get("TF_CONFIG", ""))
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
            "--host_id is missing: which of --hosts this one is, from 0 (TF_CONFIG,"
            f" {' or '.join(_INDEX_VARIABLES)} would say it, too)."
        )
    if not 0 <= host_id < len(addresses):
        raise ValueError(
            f"--host_id is {host_id}; of {len(addresses)} hosts it is one of 0 to"
            f" {len(addresses) - 1}."
        )
    return addresses, host_id


def _of_tf_config(text: str) -> tuple[tuple[str, ...], int | None]:
    """Returns the addresses of a TF_CONFIG and the index of its task.

    Raises:
      ValueError: it is not one of workers, optionally with a chief.
    """
    if not text:
        return (), None
    try:
        config = json.loads(text)
        jobs = config["cluster"]
        tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
        own = (config["task"]["type"], int(config["task"]["index"]))
        return tuple(jobs[job][i] for job, i in tasks), tasks.index(own)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"TF_CONFIG is {text!r}, which is not one of workers: {error}.") from error


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
