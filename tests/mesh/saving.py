"""Saves a program's variables as training does, but at once."""

from __future__ import annotations

from pathlib import Path

from t2tp import checkpoint
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing


def save(directory: Path, step: int, variables: Variables) -> None:
    cluster = variables.cluster
    checkpoint.save(
        directory,
        step,
        checkpointing.values_of(variables),
        {},
        process_id=cluster.process_id,
        num_processes=cluster.num_processes,
        barrier=cluster.barrier,
    )
