"""Describes the machine that a benchmark runs on, and the commit of t2tp."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Instruction sets that decide how fast matrices are multiplied.
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile")


def cores() -> int:
    """Returns the number of cores that this process, and every peer that it starts, may use."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, Any]:
    """Describes this machine according to /proc, with the date and the versions."""
    about = _first_processor(Path("/proc/cpuinfo").read_text("utf-8"))
    memory = Path("/proc/meminfo").read_text("utf-8").split()[1]
    flags = about.get("flags", "").split()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "processor": about.get("model name", platform.processor()),
        "model": f"{about.get('cpu family', '')}-{about.get('model', '')}",
        "cores": cores(),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "memory_gb": round(int(memory) / 2**20, 1),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "commit": _commit(),
    }


def directory_of(machine: Mapping[str, Any]) -> str:
    """Returns the name of the directory for results of this kind of processor."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"\(.*?\)", "", machine["processor"].lower()))
    model = machine.get("model", "").strip("-")
    return "-".join([*(word for word in words if word != "processor"), *([model] if model else [])])


def _first_processor(cpuinfo: str) -> dict[str, str]:
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _commit() -> str:
    """Returns this checkout's commit, with a + if files have changed; "" outside a repository."""
    directory = Path(__file__).parent
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
