"""`--check_layout`: compares a run's training step on its mesh with the step on a single device.

The model is shrunk first. Each integer hparam that affects the size of tensors gets the smallest
value that meets two conditions: the model can still be built, and no dimension that had several
elements per device is left with a single element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.layout_check import LayoutCheck, check_layout
from t2tp.layout_check.check import virtual_devices
from t2tp.program.abstract_program import AbstractProgram
from t2tp.quiet import errors_only
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.processes import multiprocess
from t2tp.trainer.references import ignore_references
from t2tp.trainer.run_spec import RunSpec

# Size of the vocabulary to which the ids of a batch are mapped.
_VOCAB_SIZE = 32
# Padding and end of sequence keep their ids.
_RESERVED_IDS = 2
# Smallest values of hparams, and of numbers of layers. Dimensions of fewer than 4 elements could
# hide an error in the order of elements.
_SMALLEST, _FEWEST_LAYERS = 4, 2


@dataclass
class RunLayoutCheck:
    """The check of a run's layout.

    Attributes:
      check: the comparison.
      changes: hparam -> (value in the run, value in the check).
    """

    check: LayoutCheck
    changes: Mapping[str, tuple[object, object]]

    def __str__(self) -> str:
        """The changed hparams, and the table of the comparison."""
        small = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.changes.items())
        return f"Shrunk: {small or 'nothing'}\n{self.check}"


def check_run_layout(spec: RunSpec) -> RunLayoutCheck:
    """Compares a shrunk run's training step on its mesh and on one device, in float64.

    Raises:
      LayoutError: the layout does not fit the model.
      UsageError: there are several processes.
      FileNotFoundError: the data are not prepared.
      ValueError: TensorFlow has been started with fewer devices than the mesh needs.
    """
    config = spec.config
    multiprocess.check_single(config, "--check_layout")
    virtual_devices(spec.layout.size)
    with errors_only():  # Every candidate model would log the same warnings.
        model = _shrunk(_CheckedModel(spec))
    batch = {
        # `targets_previous` has the vocabulary of `targets`.
        name: _small_ids(_whole(value), model.vocab_sizes.get(name.removesuffix("_previous")))
        for name, value in model.inputs.stream[0].items()
    }
    check = check_layout(
        model.step_fn, model.inputs.features, batch, layout=spec.layout, seed=config.random_seed
    )
    changed = spec.hparams.diff(model.spec.hparams)
    changes: dict[str, tuple[object, object]] = {name: (old, new) for name, old, new in changed}
    full = spec.problem.vocab_sizes(spec.data_dir)
    changes |= {
        f"vocabulary of {name}": (full[name], size)
        for name, size in model.vocab_sizes.items()
        if size != full[name]
    }
    return RunLayoutCheck(check, changes)


class _CheckedModel:
    """A run's model and data, with changed hparams.

    Attributes:
      vocab_sizes: vocabulary sizes of the problem, at most `_VOCAB_SIZE`.
      size: number of elements of all the graph's tensors together.
      smallest: dimension -> its smallest size on a device.
    """

    def __init__(self, spec: RunSpec) -> None:
        """Builds the graph."""
        self.spec = spec
        full = spec.problem.vocab_sizes(spec.data_dir)
        self.vocab_sizes = {name: min(size, _VOCAB_SIZE) for name, size in full.items()}
        ignore_references(spec.problem)
        self.inputs = spec.training_inputs()
        self.size = 0
        self.smallest: dict[str, int] = {}
        layout = spec.layout.without_exact_sums()  # As `check_layout` builds it.
        program = AbstractProgram(self.step_fn, self.inputs.features, layout=layout)
        for op in program.graph()[0].operations:
            for tensor in op.outputs:
                self.size += tensor.shape.size
                slice_size = program.layout.slice_size(tensor.shape)
                for dim, size in zip(tensor.shape.dims, slice_size, strict=True):
                    self.smallest[dim.name] = min(size, self.smallest.get(dim.name, size))

    def step_fn(self, mesh: Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        """The training step."""
        spec = self.spec
        # A teacher of the student's size stands for the teacher, which may be large.
        teacher = (spec.model_class, spec.hparams) if spec.config.teacher else None
        model_fn = model_fn_of(spec.model_class, self.vocab_sizes, spec.train_steps, teacher)
        return model_fn(mesh, features, ModeKeys.TRAIN, spec.hparams).outputs()

    def with_hparam(self, name: str, value: int) -> _CheckedModel | None:
        """Returns the model with a changed hparam; None if it cannot be built."""
        try:
            return _CheckedModel(self.spec.with_hparams({name: value}))
        except Exception as error:  # A user's model may raise any error.
            logging.debug("%s=%s cannot be: %s", name, value, error)
            return None


def _shrunk(model: _CheckedModel) -> _CheckedModel:
    """Returns the model with each integer hparam at its smallest possible value."""
    names = [name for name, value in model.spec.hparams.values().items() if type(value) is int]
    # Layers first: with few layers, building the other candidates is fast.
    names.sort(key=lambda name: ("layers" not in name, "length" in name))
    for name in names:
        for value in _candidates(name, model):
            smaller = model.with_hparam(name, value)
            # A dimension with several elements per device must not be left with one.
            if smaller is None or any(
                size == 1 < model.smallest.get(dim, 1) for dim, size in smaller.smallest.items()
            ):
                continue
            if smaller.size < model.size:
                model = smaller
            break
    return model


def _candidates(name: str, model: _CheckedModel) -> list[int]:
    """Returns smaller values of an hparam to try, the smallest first."""
    least = _FEWEST_LAYERS if "layers" in name else _SMALLEST
    sizes = {1, *(axis.size for axis in model.spec.layout.mesh_shape.dims)}
    values = {size << shift for size in sizes for shift in range(20)}
    return sorted(value for value in values if least <= value < model.spec.hparams.get(name))


def _whole(value: Any) -> np.ndarray:
    """Reads a whole feature into an array."""
    return np.asarray(value[tuple(slice(0, size) for size in value.shape)])


def _small_ids(values: np.ndarray, vocab_size: int | None) -> np.ndarray:
    """Maps ids to a small vocabulary; without `vocab_size` returns the values unchanged."""
    if vocab_size is None:
        return values
    others = max(1, vocab_size - _RESERVED_IDS)
    mapped = _RESERVED_IDS + (values - _RESERVED_IDS) % others
    return np.where(values < vocab_size, values, mapped)
