"""Saves and restores the variables of a `t2tp.Program`, on any mesh.

    t2tp.save_checkpoint("run", program, step)
    step = t2tp.restore_checkpoint("run", program)

A custom training loop needs only these two functions. The trainer saves in the same format, but in
the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from t2tp.argument_types import checked
from t2tp.checkpoint.restore import restore_latest, restore_step
from t2tp.checkpoint.retention import Retention, apply_retention
from t2tp.checkpoint.variables import metadata_of, values_of
from t2tp.checkpoint.writing import save
from t2tp.program.program import Program


@checked
def save_checkpoint(
    directory: str | PathLike[str],
    program: Program,
    step: int,
    *,
    metadata: Mapping[str, Any] | None = None,
    max_to_keep: int | None = None,
) -> Path:
    """Saves the variables of a program as `<directory>/step-<step>`; returns when they are on disk.

    Each process writes the slices of its devices, so no device or process needs the full value of a
    variable. With several processes, each calls this function at the same step, with a shared
    directory. If a process is killed during the save, earlier checkpoints are unaffected.

    Args:
      directory: directory of the checkpoints; created if missing.
      program: the program. Variables that it shares with other programs are saved too.
      step: number of training steps done.
      metadata: plain JSON to save with the variables. Read it as
        `t2tp.checkpoint.latest(directory).metadata`.
      max_to_keep: number of latest checkpoints to keep; None keeps all.

    Returns:
      the checkpoint's directory.

    Raises:
      ValueError: the step is already saved, the metadata are not plain JSON or use a reserved name,
        or `max_to_keep` is below 1.
      OSError: the checkpoint could not be written.
      MissingProcessError: another process did not call this function.
    """
    retention = None if max_to_keep is None else Retention(max_to_keep)
    variables, cluster = program.variables, program.cluster
    path = save(
        directory,
        step,
        [list(values_of(variables))],
        _joined(metadata_of(variables, program.layout), metadata or {}),
        cluster=cluster,
    )
    if retention is not None and cluster.is_main_process:
        apply_retention(directory, retention)
    return path


@checked
def restore_checkpoint(
    directory: str | PathLike[str],
    program: Program,
    step: int | None = None,
    *,
    missing_ok: bool = False,
    allow_extra: bool = False,
) -> int:
    """Restores the variables of a program from a checkpoint.

    The checkpoint may have been saved on any mesh, in any layout, by any number of processes, and
    in another floating-point precision. Each process reads only the slices of its devices. With
    several processes, each calls this function.

    Args:
      directory: directory of the checkpoints; `<output_dir>/checkpoints` for a run of
        `t2tp_trainer`.
      program: the program.
      step: the checkpoint's step. None restores the latest checkpoint, and skips damaged ones with
        a warning.
      missing_ok: whether to return 0 and leave the variables unchanged if there is no checkpoint.
        Then the same command can start and resume a training.
      allow_extra: whether the checkpoint may have variables that the program lacks, such as the
        optimizer's variables in a program that only evaluates.

    Returns:
      the checkpoint's step.

    Raises:
      FileNotFoundError: there is no checkpoint, and `missing_ok` is False.
      CheckpointMismatchError: the checkpoint lacks a variable of the program, or has it in another
        shape; or it has extra variables and `allow_extra` is False.
      UnusableCheckpointError: the checkpoint of `step` is damaged or cannot be read. Without
        `step`: all checkpoints are damaged, or the latest cannot be read.
      DifferentCheckpointsError: the processes do not share the directory.
    """
    strict = not allow_extra
    if step is not None:
        restore_step(Path(directory), step, program.variables, strict=strict)
        return step
    restored = restore_latest(Path(directory), program.variables, strict=strict)
    if restored is not None:
        return restored.step
    if missing_ok:
        return 0
    raise FileNotFoundError(
        f"{directory} holds no finished checkpoint; with missing_ok=True the program keeps its"
        " initial values where there is none"
    )


def _joined(reserved: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the variables' metadata with the caller's metadata."""
    clashes = sorted(set(reserved) & set(given))
    if clashes:
        raise ValueError(f"metadata: the key {clashes[0]!r} is reserved; choose another name")
    return {**reserved, **given}
