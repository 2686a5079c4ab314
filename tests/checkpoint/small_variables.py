"""One variable that is split over a mesh, and its checkpoints."""

from pathlib import Path

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import checkpoint, mtf
from t2tp.checkpoint.variables import values_of
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect
from t2tp.program.variables import Variables, VariableSpec

SHAPE = mtf.Shape([mtf.Dimension("d_in", 8), mtf.Dimension("d_out", 4)])


def small_variables(dtype: tf.DType = tf.float32, mesh_shape: str = "") -> Variables:
    """Creates the variable `w` [d_in, d_out] with random values."""
    layout = Layout(mesh_shape, "d_in:model")
    variables = Variables(layout, connect(layout.size))
    variables.create(VariableSpec("w", SHAPE, dtype, tf1.random_normal_initializer(), True))
    return variables


def save(directory: Path, variables: Variables, *steps: int) -> None:
    """Saves a checkpoint with the same values at each step."""
    for step in steps:
        checkpoint.save(directory, step, [list(values_of(variables))], {})
