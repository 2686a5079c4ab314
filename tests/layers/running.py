"""Builds a layer, runs it on a mesh, and returns its outputs and variables."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

import t2tp

# Name -> (shape in words, array). Integers are fed as int32.
Inputs = Mapping[str, tuple[str, np.ndarray]]


class Ran(dict):
    """The outputs of a layer by name.

    Attributes:
      variables: name -> value of the variable, float64.
      program: the program.
    """

    variables: dict[str, np.ndarray]
    program: t2tp.Program


def run(build, inputs, mesh_shape="", layout="", change=None, program_class=t2tp.Program):
    """Runs `build(**inputs)` and returns its outputs.

    Args:
      build: function from named tensors to named tensors.
      inputs: the named tensors' values.
      mesh_shape: shape of the mesh.
      layout: rules of the layout.
      change: function from a variable's name and initial value to the value that it gets instead.
      program_class: the program's class, such as `DoubleProgram`.
    """
    features = {
        name: t2tp.Feature(shape, tf.float32 if array.dtype.kind == "f" else tf.int32)
        for name, (shape, array) in inputs.items()
    }
    program = program_class(
        lambda mesh, given: build(**given), features, mesh_shape=mesh_shape, layout=layout
    )
    for variable in program.variables if change else ():
        variable.assign(change(variable.spec.name, variable.numpy()))
    outputs = program({name: array for name, (_, array) in inputs.items()})
    ran = Ran({name: np.asarray(outputs[name], np.float64) for name in outputs})
    ran.variables = {v.spec.name: v.numpy().astype(np.float64) for v in program.variables}
    ran.program = program
    return ran
