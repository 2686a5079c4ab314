"""Converts a program's variables to a checkpoint's slices, and back."""

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import upstream
from t2tp.checkpoint.errors import DamagedCheckpointError, checkpoint_in
from t2tp.checkpoint.frozen_base import base_with, check_has, reference
from t2tp.checkpoint.reading import BASE, DIMENSIONS, LAYOUT, MESH_SHAPE, TRAINABLE, Checkpoint
from t2tp.checkpoint.slices import Slice
from t2tp.mesh.layout import Layout
from t2tp.program.variables import SlicedVariable, Variables, padded
from t2tp.suggestions import first_few

# Max number of processors of a mesh that has saved a checkpoint.
_MAX_PROCESSORS = 1 << 20
# Counters that a run's older checkpoints may lack, because the run can enable their options later.
# They begin at 0. See `t2tp.optim.step_skipping`.
_NEW_COUNTERS = ("step_guard/skipped_steps",)


class CheckpointMismatchError(ValueError):
    """A checkpoint has other variables than the program.

    Attributes:
      only_optimizer_differs: whether the checkpoint has all trainable variables in the same shapes.
    """

    def __init__(
        self, message: str, path: str | PathLike[str] = "", only_optimizer_differs: bool = False
    ) -> None:
        super().__init__(message)
        self.path = Path(path)
        self.only_optimizer_differs = only_optimizer_differs


def values_of(variables: Variables) -> Iterator[tuple[Slice, tf.Variable | tf.Tensor]]:
    """Yields the slices that this process saves, with their values, without padding.

    If several processors have a slice, the process of the first of these processors saves it.
    Frozen weights that are in a base are not saved.
    """
    for variable in _saved(variables):
        for pnum in variable.owners().values():
            if pnum in variables.cluster.local_pnums:
                yield _slice(variable, pnum), variable.value_of(pnum)


def _saved(variables: Variables) -> list[SlicedVariable]:
    return [v for v in variables if not (v.spec.frozen and variables.base)]


def metadata_of(variables: Variables, layout: Layout) -> dict:
    """Returns the metadata of the variables, as plain JSON."""
    return {
        **({BASE: variables.base} if variables.base else {}),
        MESH_SHAPE: layout.mesh_text,
        LAYOUT: layout.rules_text,
        DIMENSIONS: {v.spec.name: list(v.spec.shape.dimension_names) for v in _saved(variables)},
        TRAINABLE: [v.spec.name for v in variables if v.spec.trainable],
    }


def trainable_names(saved: Checkpoint) -> list[str]:
    """Returns the names of the trainable variables, or raises LookupError if unrecorded."""
    if TRAINABLE not in saved.metadata:
        raise LookupError(f"the checkpoint {saved.path} does not say which variables are trainable")
    return saved.metadata[TRAINABLE]


def named_shape(saved: Checkpoint, name: str) -> upstream.Shape | None:
    """Returns a variable's shape in named dimensions; None if they are not recorded."""
    dimensions = saved.metadata.get(DIMENSIONS, {}).get(name)
    if dimensions is None:
        return None
    sizes = saved.shapes()[name]
    named = zip(dimensions, sizes, strict=True)
    return upstream.Shape([upstream.Dimension(*each) for each in named])


def saved_layout(saved: Checkpoint) -> Layout | None:
    """Returns the layout in which a checkpoint was saved; None if it is not recorded."""
    if MESH_SHAPE not in saved.metadata:
        return None
    try:
        layout = Layout(saved.metadata[MESH_SHAPE], saved.metadata.get(LAYOUT, ""))
    except ValueError as error:
        raise DamagedCheckpointError(f"{checkpoint_in(saved.path)} is damaged: {error}.") from error
    if layout.size > _MAX_PROCESSORS:
        raise DamagedCheckpointError(
            f"{checkpoint_in(saved.path)} is damaged: it has a mesh of {layout.size:,} processors."
        )
    return layout


def slices_as_saved(saved: Checkpoint, name: str) -> list[Slice]:
    """Returns the slices in which a variable was saved; a full slice if the layout is unknown."""
    shape, dtype = saved.shapes()[name], saved.dtypes()[name]
    named, layout = named_shape(saved, name), saved_layout(saved)
    if named is None or layout is None:
        return [Slice.full(name, shape, dtype)]
    regions = {layout.slice_begin(named, p): layout.slices(named, p) for p in range(layout.size)}
    return [
        Slice(name, shape, begin, tuple(part.stop - part.start for part in region), dtype)
        for begin, region in regions.items()
        if all(part.start < part.stop for part in region)
    ]


def check_fit(saved: Checkpoint, variables: Variables, strict: bool) -> None:
    """Raises CheckpointMismatchError unless the variables can be restored from a checkpoint.

    Args:
      saved: the checkpoint.
      variables: the program's variables.
      strict: whether variables that only the checkpoint has are an error. Evaluation allows them,
        because it does not need the optimizer's variables.
    """
    saved_shapes, program = saved.shapes(), {v.spec.name: v.spec for v in variables}
    differences = []
    for name, spec in program.items():
        shape, there = tuple(spec.shape.to_integer_list), saved_shapes.get(name)
        if spec.frozen and BASE in saved.metadata:  # `load_base` checks the weights of the base.
            continue
        if there is None and name not in _NEW_COUNTERS:
            differences.append(f"{name} is not in the checkpoint")
        elif there is not None and there != shape:
            differences.append(f"{name} is {there} in the checkpoint and {shape} in the program")
        elif there is not None and not _converts(kind := saved.dtypes()[name], spec.dtype):
            differences.append(
                f"{name} is {kind.name} in the checkpoint and {spec.dtype.name} in the program"
            )
    if strict:
        beyond = sorted(saved_shapes.keys() - program)
        differences += [f"{name} is only in the checkpoint" for name in beyond]
    if differences:
        # Of a run with another optimizer, the trainable variables fit.
        only_optimizer = strict and all(
            saved_shapes.get(name) == tuple(spec.shape.to_integer_list)
            for name, spec in program.items()
            if spec.trainable
        )
        where = "; only optimizer variables differ" if only_optimizer else ""
        raise CheckpointMismatchError(
            f"the checkpoint {saved.path} does not fit the model's variables:"
            f" {first_few(differences)}{where}",
            saved.path,
            only_optimizer,
        )


def restore(saved: Checkpoint, variables: Variables, *, strict: bool) -> None:
    """Restores variables from a checkpoint of any mesh and floating-point precision.

    Each process reads a slice only once, and copies it to its processors that need it. For the
    arguments see `check_fit`.

    Raises:
      CheckpointMismatchError: the checkpoint has other variables. No variable was changed.
      BaseError: the checkpoint has adapters, and their base was not found or lacks a weight.
      DamagedCheckpointError: the checkpoint is damaged or was deleted.
      UnusableCheckpointError: the checkpoint cannot be read.
    """
    check_fit(saved, variables, strict)
    if BASE in saved.metadata:
        load_base(saved, variables)
    else:
        variables.base = None
        variables.loaded_from_base.clear()
    converted = 0
    for variable in variables:
        if variable.spec.name in variables.loaded_from_base:
            continue
        if variable.spec.name not in saved.shapes():  # One of `_NEW_COUNTERS`.
            for part in variable.slices:
                part.assign(tf.zeros_like(part))
            continue
        load(saved, variable.spec.name, variable)
        converted += saved.dtypes()[variable.spec.name] != variable.spec.dtype
    if converted:
        logging.info("%d variables were saved in another precision, and are converted", converted)


def load_base(
    source: Checkpoint, variables: Variables, names: Mapping[str, str] | None = None
) -> None:
    """Loads the frozen weights that are not loaded yet, and records their base in `variables`.

    `source` is a checkpoint with the frozen weights, or a checkpoint of their adapters. `names`
    maps frozen variables to their names in `source`, if these differ.

    Raises:
      BaseError: the base was not found, or lacks a weight.
    """
    frozen = {v.spec.name: v for v in variables if v.spec.frozen}
    of_source = {name: (names or {}).get(name, name) for name in frozen}
    base, of_base = base_with(source, of_source, variables.base_elsewhere)
    check_has(
        base, [(n, of_base[n], tuple(v.spec.shape.to_integer_list)) for n, v in frozen.items()]
    )
    record = reference(base, of_base)
    if variables.base is not None and variables.base["save_id"] != record["save_id"]:
        variables.loaded_from_base.clear()
    variables.base = record
    for name, variable in frozen.items():
        if name not in variables.loaded_from_base:
            load(base, of_base[name], variable)
            variables.loaded_from_base.add(name)


def load(saved: Checkpoint, name: str, variable: SlicedVariable) -> None:
    """Restores a variable, in its dtype, from a checkpoint's tensor `name` of the same shape."""
    stored = saved.dtypes()[name]
    owners = variable.local_owners()
    values = saved.read([_slice(variable, pnum, name, stored) for pnum in owners.values()])
    assign_slices(variable, dict(zip(owners, values, strict=True)))


def assign_slices(
    variable: SlicedVariable, values: Mapping[tuple[int, ...], tf.Tensor | np.ndarray]
) -> None:
    """Assigns this process's slices of a variable, converted to the variable's dtype.

    `values` maps the begin of each slice to its value without padding. Slices that are missing in
    `values` consist of padding, and become 0.
    """
    for pnum, part in zip(variable.local_pnums, variable.slices, strict=True):
        with tf.device(part.device):
            value = values.get(variable.begin(pnum))
            value = tf.zeros_like(part) if value is None else padded(value, part.shape)
            part.assign(tf.cast(value, variable.spec.dtype))


def _slice(
    variable: SlicedVariable, pnum: int, name: str = "", dtype: tf.DType | None = None
) -> Slice:
    """Returns a processor's slice of a variable, by default with the variable's name and dtype."""
    spec = variable.spec
    return Slice(
        name or spec.name,
        tuple(spec.shape.to_integer_list),
        variable.begin(pnum),
        tuple(part.stop - part.start for part in variable.region(pnum)),
        dtype or spec.dtype,
    )


def _converts(stored: tf.DType, dtype: tf.DType) -> bool:
    """Whether a value that was saved in `stored` can be restored in `dtype`."""
    return stored == dtype or (stored.is_floating and dtype.is_floating)
