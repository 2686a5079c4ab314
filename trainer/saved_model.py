"""SavedModels: written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

import tensorflow as tf
from tensorflow.python.trackable import resource

from t2tp.mesh.program import Feature, Program
from t2tp.trainer.errors import UsageError
from t2tp.trainer.serving import Step

# From a program inside of a graph to signatures by name.
Signatures = Callable[[Step], Mapping[str, "tf.types.experimental.ConcreteFunction"]]


def write_saved_model(program: Program, path: str | PathLike[str], signatures: Signatures) -> Path:
    """Writes a program of one device, with its variables.

    Args:
      program: whose variables have their values.
      path: of the new folder.
      signatures: makes what the SavedModel can be asked.

    Returns:
      the folder.

    Raises:
      UsageError: the folder exists.
      ValueError: the program has a mesh.
      OSError: it cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already: name a folder that does not")
    module = tf.Module()
    module.variables_held = [v for each in program.variables for v in each.slices]
    specs = {
        name: tf.TensorSpec(x.shape, x.dtype)
        for name, x in program.trace().structured_outputs.items()
    }
    # Tables of vocabularies are made while functions are traced; what is exported must hold them.
    tracker = resource.ResourceTracker()
    with resource.resource_tracker_scope(tracker):
        made = dict(signatures(Step(program.on_tensors, specs)))
    module.resources_held = list(tracker.resources)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        tf.saved_model.save(module, str(unfinished), signatures=made)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def traced(
    fn: Callable[..., Mapping[str, tf.Tensor]], **specs: tf.TensorSpec
) -> tf.types.experimental.ConcreteFunction:
    """A signature: a function of tensors by name, traced."""
    return tf.function(lambda **given: dict(fn(**given)), autograph=False).get_concrete_function(
        **specs
    )


def of_features(features: Mapping[str, Feature]) -> Signatures:
    """`serving_default`, from features of exactly these shapes to what the program gives."""
    specs = {
        name: tf.TensorSpec(f.shape.to_integer_list, f.dtype, name=name)
        for name, f in features.items()
    }
    return lambda step: {"serving_default": traced(lambda **given: step.run(given), **specs)}
