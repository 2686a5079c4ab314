"""The variables of a run as a checkpoint, and back."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from absl import logging

from t2tp import checkpoint, mtf
from t2tp.checkpoint import Checkpoint, Slice, UnusableCheckpointError
from t2tp.mesh.layout import Layout
from t2tp.mesh.variables import SlicedVariable, Variables
from t2tp.optim.guards import SKIPPED_STEPS

# What the metadata say of the variables, and where they were.
DIMENSIONS, TRAINABLE, MESH_SHAPE, LAYOUT = "dimensions", "trainable", "mesh_shape", "layout"


class CheckpointMismatchError(ValueError):
    """A checkpoint holds other variables than the program."""


def checkpoint_folder(output_dir: str) -> Path:
    """Where a run's checkpoints are."""
    return Path(output_dir) / "checkpoints"


def find(path: str) -> Checkpoint:
    """Opens what a user means by a checkpoint.

    Args:
      path: a checkpoint's folder, or what TensorFlow calls it (that folder's `variables`); or a
        run's folder or its folder of checkpoints, and then the newest is meant.

    Raises:
      FileNotFoundError: there is none.
      UnusableCheckpointError: it is unfinished, damaged, or cannot be read. No other one is taken
        in its place.
    """
    try:
        return _find(path)
    except (FileNotFoundError, UnusableCheckpointError):
        raise
    except OSError as error:
        raise UnusableCheckpointError(f"{path} cannot be read: {error}") from error


def _find(path: str) -> Checkpoint:
    folder = Path(path)
    if folder.name == "variables" and not folder.exists():
        folder = folder.parent
    for directory in (checkpoint_folder(str(folder)), folder):
        steps = checkpoint.step_folders(directory)
        if steps:
            return Checkpoint(list(steps.values())[-1])
    if not folder.exists():
        raise FileNotFoundError(f"{path} does not exist: name a checkpoint's folder, or a run's")
    if checkpoint_folder(str(folder)).is_dir() or folder.name == "checkpoints":
        raise FileNotFoundError(f"{path} holds no finished checkpoint")
    return Checkpoint(folder)


def values_of(variables: Variables) -> list[tuple[Slice, tf.Variable]]:
    """What this process saves: of all processes, the first that holds a slice does it."""
    return [
        (_slice(variable, pnum), variable.slice_of(pnum))
        for variable in variables
        for pnum in variable.owners().values()
        if pnum in variables.cluster.local_pnums
    ]


def metadata_of(variables: Variables, mesh_shape: str, layout: str) -> dict:
    """What is to be known of the variables besides their values, as plain JSON."""
    return {
        MESH_SHAPE: mesh_shape,
        LAYOUT: layout,
        DIMENSIONS: {v.spec.name: list(v.spec.shape.dimension_names) for v in variables},
        TRAINABLE: [v.spec.name for v in variables if v.spec.trainable],
    }


def trainable_names(saved: Checkpoint) -> list[str]:
    """The names of the variables that were trained.

    Raises:
      LookupError: the checkpoint does not say it.
    """
    if TRAINABLE not in saved.metadata:
        raise LookupError(f"the checkpoint {saved.path} does not say which variables are trainable")
    return saved.metadata[TRAINABLE]


def named_shape(saved: Checkpoint, name: str) -> mtf.Shape | None:
    """A variable's shape in named dimensions; None if the checkpoint does not say them."""
    dimensions = saved.metadata.get(DIMENSIONS, {}).get(name)
    if dimensions is None:
        return None
    sizes = saved.shapes()[name]
    return mtf.Shape([mtf.Dimension(*each) for each in zip(dimensions, sizes, strict=True)])


def slices_as_saved(saved: Checkpoint, name: str) -> list[Slice]:
    """The slices of a variable in the layout in which it was saved; all of it if that is unknown.

    To read them one by one needs no more memory than the largest.
    """
    shape, dtype = saved.shapes()[name], saved.dtypes()[name]
    named = named_shape(saved, name)
    if named is None or MESH_SHAPE not in saved.metadata:
        return [Slice.whole(name, shape, dtype)]
    layout = Layout(saved.metadata[MESH_SHAPE], saved.metadata[LAYOUT])
    size = tuple(layout.slice_size(named))
    begins = dict.fromkeys(tuple(layout.slice_begin(named, p)) for p in range(layout.size))
    return [Slice(name, shape, begin, size, dtype) for begin in begins]


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
    differ += [
        f"{v.spec.name} is {kind.name} in the checkpoint and {v.spec.dtype.name} in the program"
        for v in variables
        if (kind := saved.dtypes().get(v.spec.name)) and not _converts(kind, v.spec.dtype)
    ]
    differ += [
        f"{name} is not in the checkpoint"
        for name in here
        if name not in there and name != SKIPPED_STEPS
    ]
    if whole:
        differ += [f"{name} is only in the checkpoint" for name in there if name not in here]
    if differ:
        shown = "; ".join(differ[:3])
        more = f"; and {len(differ) - 3} more" if len(differ) > 3 else ""
        advice = ""
        if whole and _fits_but_for_the_optimizer(saved, variables):
            advice = (
                f"; only what the optimizer keeps differs: a new run with --warm_start_from="
                f"{saved.path} begins with the model's values and a fresh optimizer"
            )
        raise CheckpointMismatchError(
            f"the checkpoint {saved.path} does not fit the model's variables: {shown}{more}{advice}"
        )


def restore(saved: Checkpoint, variables: Variables) -> None:
    """Gives the variables the checkpoint's values, on whatever mesh and in whatever precision it
    was saved.

    Each process reads the slices of its processors, each once, and then gives it to all of them
    that hold it.

    Args:
      saved: a checkpoint that fits, see `check_fit`.
      variables: get the values.

    Raises:
      UnusableCheckpointError: the checkpoint is damaged.
    """
    converted = 0
    for variable in variables:
        if variable.spec.name not in saved.shapes():  # A count, of what could not happen before.
            for part in variable.slices:
                part.assign(tf.zeros_like(part))
            continue
        load(saved, variable.spec.name, variable, variables.cluster.local_pnums)
        converted += saved.dtypes()[variable.spec.name] != variable.spec.dtype
    if converted:
        logging.info("%d variables were saved in another precision, and are converted", converted)


def load(saved: Checkpoint, name: str, variable: SlicedVariable, local_pnums: range) -> None:
    """Gives a variable the value that a checkpoint holds under a name, in the variable's dtype.

    Args:
      saved: the checkpoint.
      name: of a tensor of the variable's shape there.
      variable: gets the value.
      local_pnums: the processors of this process.
    """
    stored = saved.dtypes()[name]
    owners = variable.local_owners()
    values = saved.read([_slice(variable, pnum, name, stored) for pnum in owners.values()])
    by_begin = dict(zip(owners, values, strict=True))
    for pnum, part in zip(local_pnums, variable.slices, strict=True):
        with tf.device(part.device):
            part.assign(tf.cast(by_begin[variable.begin(pnum)], variable.spec.dtype))


def _slice(
    variable: SlicedVariable, pnum: int, name: str = "", dtype: tf.DType | None = None
) -> Slice:
    """What processor `pnum` holds of a variable, by its own name and dtype or by those given."""
    spec = variable.spec
    return Slice(
        name or spec.name,
        tuple(spec.shape.to_integer_list),
        variable.begin(pnum),
        tuple(variable.slice_of(pnum).shape),
        dtype or spec.dtype,
    )


def _converts(stored: tf.DType, wanted: tf.DType) -> bool:
    """Whether a value that was saved in one dtype can be restored in another."""
    return stored == wanted or (stored.is_floating and wanted.is_floating)


def _fits_but_for_the_optimizer(saved: Checkpoint, variables: Variables) -> bool:
    """Whether all that is trained is there, in the same shape."""
    there = saved.shapes()
    return all(
        there.get(v.spec.name) == tuple(v.spec.shape.to_integer_list)
        for v in variables
        if v.spec.trainable
    )
