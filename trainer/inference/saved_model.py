"""Writes programs as SavedModels, atomically."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import tensorflow as tf
from tensorflow.python.trackable import resource

from t2tp.checkpoint.errors import reason
from t2tp.program.program import Feature, Program
from t2tp.scratch_directory import scratch_directory
from t2tp.trainer.errors import UsageError

Tensors = Mapping[str, tf.Tensor]


@dataclass(frozen=True)
class Step:
    """A program's step as a function inside a graph.

    Attributes:
      run: maps features by name to outputs by name.
      outputs: specs of the outputs.
    """

    run: Callable[[Tensors], Tensors]
    outputs: Mapping[str, tf.TensorSpec]


# Maps a step inside a graph to signatures by name.
Signatures = Callable[[Step], Mapping[str, "tf.types.experimental.ConcreteFunction"]]


def write_saved_model(program: Program, path: str | PathLike[str], signatures: Signatures) -> Path:
    """Writes a single-device program, with restored variables, into the new directory `path`.

    Raises:
      UsageError: the directory exists.
      ValueError: the program has a mesh.
      OSError: the directory cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists already: name a directory that does not")
    module = tf.Module()
    module.variables_held = [v for each in program.variables for v in each.slices]
    step = step_of(program)
    # Tracing creates vocabulary tables, which are saved only if the module references them.
    tracker = resource.ResourceTracker()
    with resource.resource_tracker_scope(tracker):
        functions = dict(signatures(step))
    module.resources_held = list(tracker.resources)
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(path.parent, ".t2tp-export-") as scratch:
        try:
            tf.saved_model.save(module, str(scratch / path.name), signatures=functions)
        except tf.errors.OpError as error:  # for example a full disk
            raise OSError(f"{path} cannot be written: {reason(error)}") from error
        (scratch / path.name).rename(path)
    return path


def step_of(program: Program) -> Step:
    """Returns the step of a single-device program."""
    outputs = program.trace().structured_outputs.items()
    specs = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in outputs}
    return Step(program.on_tensors, specs)


def traced(
    fn: Callable[..., Mapping[str, tf.Tensor]], **specs: tf.TensorSpec
) -> tf.types.experimental.ConcreteFunction:
    """Traces a function with named tensors as arguments and results."""
    return tf.function(lambda **given: dict(fn(**given)), autograph=False).get_concrete_function(
        **specs
    )


def specs_of(features: Mapping[str, Feature]) -> dict[str, tf.TensorSpec]:
    """Returns the specs of features, with their names."""
    return {
        name: tf.TensorSpec(f.shape.to_integer_list, f.dtype, name=name)
        for name, f in features.items()
    }


def of_features(features: Mapping[str, Feature]) -> Signatures:
    """Returns one signature, `serving_default`, for features of exactly these shapes."""
    specs = specs_of(features)
    return lambda step: {"serving_default": traced(lambda **given: step.run(given), **specs)}
