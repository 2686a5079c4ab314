"""Saves and restores the variables of a `t2tp.Program`, on any mesh.

    t2tp.save_checkpoint("run", program, step)
    step = t2tp.restore_checkpoint("run", program)

This is all that a custom training loop needs. The trainer's checkpoints have the same format, and
are written in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2tp.checkpoint.restore import restore_latest, restore_step
from t2tp.checkpoint.retention import Retention, apply_retention
from t2tp.checkpoint.variables import metadata_of, values_of
from t2tp.checkpoint.writing import save

if TYPE_CHECKING:
    from t2tp.program.program import Program


def save_checkpoint(
    directory: str | PathLike[str],
    program: Program,
    step: int,
    *,
    metadata: Mapping[str, Any] | None = None,
    max_to_keep: int | None = None,
) -> Path:
    """Saves the variables of a program as `<directory>/step-<step>`; returns when they are on disk.

    Each process writes the slices of its devices, so no device and no process ever needs the full
    value of a variable. With several processes, all call this at the same step, with a shared
    directory. If a process is killed meanwhile, earlier checkpoints are unaffected.

    Args:
      directory: directory of the checkpoints; created if missing.
      program: its variables are saved, including those it shares with other programs.
      step: number of training steps done.
      metadata: saved with them, as plain JSON; read it as
        `t2tp.checkpoint.latest(directory).metadata`.
      max_to_keep: deletes all but the latest N checkpoints; None keeps all.

    Returns:
      the directory of the checkpoint.

    Raises:
      ValueError: the step is already saved there, the metadata are not plain JSON or use a reserved
        name, or `max_to_keep` is below 1.
      OSError: the checkpoint could not be written.
      MissingProcessError: another process did not call this.
    """
    retention = None if max_to_keep is None else Retention(max_to_keep)
    variables, cluster = program.variables, program.cluster
    path = save(
        directory,
        step,
        list(values_of(variables)),
        _joined(metadata_of(variables, program.layout), metadata or {}),
        cluster=cluster,
    )
    if retention is not None and cluster.is_main_process:
        apply_retention(directory, retention)
    return path


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
    several processes, all call this.

    Args:
      directory: directory of the checkpoints; `<output_dir>/checkpoints` for a run of
        `t2tp_trainer`.
      program: its variables are restored.
      step: the step of the checkpoint. None restores the latest, or, if that is damaged, the
        previous one, with a warning.
      missing_ok: whether to return 0 and leave the variables unchanged if there is no checkpoint,
        so that the same command starts and resumes a training.
      allow_extra: whether the checkpoint may have variables that the program lacks: the
        optimizer's, if the program only evaluates.

    Returns:
      the step of the checkpoint.

    Raises:
      FileNotFoundError: there is no checkpoint, and `missing_ok` is False.
      CheckpointMismatchError: a variable of the program is not in the checkpoint or has another
        shape there, or, unless `allow_extra`, vice versa.
      UnusableCheckpointError: the checkpoint of the step, or every checkpoint, is damaged, or it
        cannot be read.
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
    """Joins the metadata of the variables and of the caller."""
    clashes = sorted(set(reserved) & set(given))
    if clashes:
        raise ValueError(f"metadata: the key {clashes[0]!r} is reserved; choose another name")
    return {**reserved, **given}
