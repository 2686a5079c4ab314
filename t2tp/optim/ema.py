"""Exponential moving averages of weights, which often evaluate better than the last weights.

B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging" (1992).
TensorFlow's `ExponentialMovingAverage` has the same formula.
"""

from collections.abc import Sequence

import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh, is_balance
from t2tp.optim.optimizer import UpdateOperation, slot, step_variable
from t2tp.program.variables import AVERAGE, average_of


def average_weights(variables: Sequence[mtf.Variable], decay: float) -> list[mtf.Operation]:
    """Updates the average of each variable after the variable's update; returns the operations.

    The averages are float32 variables `<variable>/average`, initialized to the variables' values
    after the first step with averages.

    Args:
      variables: the variables; their updates must be in the graph already.
      decay: decay of the averages per step, such as 0.999.
    """
    if not variables:
        return []
    count = step_variable(variables[0].mesh, "weight_averages/count")

    def update(average: tf.Variable, var: tf.Variable, count: tf.Tensor) -> None:
        part = tf.where(tf.equal(count, 0.0), 1.0, 1.0 - decay)
        average.assign_sub(part * (average - tf.cast(var, tf.float32)), read_value=False)

    operations = [
        UpdateOperation("average", [slot(var, AVERAGE), var], [count], update) for var in variables
    ]
    one = mtf.constant(count.mesh, 1.0, dtype=tf.float32)
    return [*operations, mtf.assign_add(count, one)]


def read_averages(mesh: Mesh) -> None:
    """Makes an evaluation graph read the averages instead of the variables that have one."""
    averaged = [var for var in mesh.graph.trainable_variables if not is_balance(var)]
    mesh.graph.trainable_variables.clear()
    for var in averaged:
        var._name = average_of(var.name)
        var._trainable = False
        var._dtype = mtf.VariableDType(tf.float32, tf.float32, var.activation_dtype)
