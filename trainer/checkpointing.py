"""Saves and restores the variables of a run."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from t2tp import checkpoint
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.mesh.variables import SlicedVariable, Variables


class CheckpointMismatchError(ValueError):
    """A checkpoint holds other variables than the program."""


def checkpoint_folder(output_dir: str) -> Path:
    """Where a run's checkpoints are."""
    return Path(output_dir) / "checkpoints"


def save(directory: Path, step: int, variables: Variables, metadata: dict) -> Path:
    """Saves each slice of each variable once: of all processes, the first that holds it does it.

    Args:
      directory: holds the run's checkpoints.
      step: how many steps were done.
      variables: whose present values are saved.
      metadata: what else to remember, as plain JSON.

    Raises:
      OSError: the checkpoint could not be written; earlier ones are as they were.
    """
    cluster = variables.cluster
    values = [
        (_slice(variable, pnum), variable.slice_of(pnum))
        for variable in variables
        for pnum in variable.owners().values()
        if pnum in cluster.local_pnums
    ]
    return checkpoint.save(
        directory,
        step,
        values,
        metadata,
        process_id=cluster.process_id,
        num_processes=cluster.num_processes,
        barrier=cluster.barrier,
    )


def check_fit(saved: Checkpoint, variables: Variables, whole: bool) -> None:
    """Refuses a checkpoint from which the variables cannot be restored.

    Args:
      saved: the checkpoint.
      variables: those of the program.
      whole: whether the checkpoint must hold nothing else. When evaluating it may: the optimizer's
        variables are there, and nobody needs them.

    Raises:
      CheckpointMismatchError: names the first variables that differ.
    """
    there = saved.shapes()
    here = {v.spec.name: tuple(v.spec.shape.to_integer_list) for v in variables}
    differ = [
        f"{name} is {there[name]} in the checkpoint and {shape} in the program"
        for name, shape in here.items()
        if name in there and there[name] != shape
    ]
    differ += [f"{name} is not in the checkpoint" for name in here if name not in there]
    if whole:
        differ += [f"{name} is only in the checkpoint" for name in there if name not in here]
    if differ:
        shown = "; ".join(differ[:3])
        more = f"; and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise CheckpointMismatchError(
            f"the checkpoint {saved.path} does not fit the model's variables: {shown}{more}"
        )


def restore(saved: Checkpoint, variables: Variables) -> None:
    """Gives the variables the checkpoint's values, on whatever mesh it was saved.

    Each process reads the slices of its processors, each once, and then gives it to all of them
    that hold it.

    Args:
      saved: a checkpoint that fits, see `check_fit`.
      variables: get the values.

    Raises:
      UnusableCheckpointError: the checkpoint is damaged.
    """
    for variable in variables:
        owners = variable.local_owners()
        values = saved.read([_slice(variable, pnum) for pnum in owners.values()])
        by_begin = dict(zip(owners, values, strict=True))
        for pnum, part in zip(variables.cluster.local_pnums, variable.slices, strict=True):
            with tf.device(part.device):
                part.assign(by_begin[variable.begin(pnum)])


def _slice(variable: SlicedVariable, pnum: int) -> Slice:
    """What processor `pnum` holds of a variable."""
    spec = variable.spec
    return Slice(
        spec.name,
        tuple(spec.shape.to_integer_list),
        variable.begin(pnum),
        tuple(variable.slice_of(pnum).shape),
        spec.dtype,
    )
