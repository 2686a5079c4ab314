"""The base class of optimizers, and the operation that updates a variable and its slots."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import Mesh, declared
from t2tp.building.role import EMBEDDING, HEAD, MATRIX
from t2tp.building.transfer import SAME_SIZE, Growth
from t2tp.hparam import HParams
from t2tp.lowering.context import Lowering
from t2tp.mesh.graph_memo import GraphMemo
from t2tp.mesh.layout import Layout
from t2tp.suggestions import matches


def weight_decays(variables: Sequence[mtf.Variable], rate: float, exclude: str = "") -> list[float]:
    """Returns the weight decay of each variable.

    The weight decay is decoupled: a step subtracts `learning_rate * rate` times the variable.
    (I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.)
    Matrices and embeddings decay. Biases and the parameters of norms do not (see `mtf.Role`). A
    variable without a declared role decays if it has two dimensions or more.

    Args:
      variables: variables of one graph.
      rate: the decay relative to the learning rate; 0 for no decay.
      exclude: patterns of the names of variables that do not decay; see `matches`.

    Raises:
      ValueError: `exclude` matches no variable's name.
    """
    if not rate or not variables:
        return [0.0] * len(variables)
    # Names of frozen variables count too: fine-tuning uses the hparams of the pretraining, whose
    # pattern may match only frozen variables.
    names = [var.name for var in variables[0].mesh.graph.all_variables]
    if exclude and not any(matches(name, exclude) for name in names):
        raise ValueError(
            f"weight_decay_exclude={exclude!r} matches none of the variables: {', '.join(names)}"
        )

    def decays(var: mtf.Variable) -> bool:
        role = declared(var).role
        return var.shape.ndims > 1 if role is None else role.kind in (MATRIX, HEAD, EMBEDDING)

    return [rate if decays(v) and not matches(v.name, exclude) else 0.0 for v in variables]


class Target(NamedTuple):
    """A variable to update, with its gradient and rates in this step.

    Attributes:
      grad: the gradient, float32.
      rate: the learning rate, a float32 scalar.
      decay: the weight decay; the update also subtracts `rate * decay` times the variable.
    """

    var: mtf.Variable
    grad: mtf.Tensor
    rate: mtf.Tensor
    decay: float


class Optimizer(mtf.optimize.Optimizer):
    """Base class of optimizers; subclasses define `move` or `updates`, and register themselves.

    Attributes:
      name: name of the operations that update a variable with `move`.
      slots: names of the slots that `move` receives.
      hparams: the hparams of the training.
      update_number: a float32 scalar, the number of the current step's update, from 1. None: no
        step is skipped, so the number follows from the step.
    """

    name = "update"
    slots: tuple[str, ...] = ()
    update_number: mtf.Tensor | None = None

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Sets the learning rate, a float32 scalar.

        Raises:
          ValueError: hparams are invalid.
        """
        self.hparams, self._learning_rate = hparams, learning_rate
        self._shared = GraphMemo()

    def apply_grads(
        self, grads: Sequence[mtf.Tensor], variables: Sequence[mtf.Variable]
    ) -> list[mtf.Operation]:
        """Updates the variables; returns the update operations."""
        hparams = self.hparams
        decays = weight_decays(variables, hparams.weight_decay, hparams.weight_decay_exclude)
        rates = {1.0: self._learning_rate}
        targets = []
        for grad, var, decay in zip(grads, variables, decays, strict=True):
            variable = declared(var)
            factor = 1.0
            if variable.role is not None and variable.growth != SAME_SIZE:
                factor = self.rate_factor(variable.role, variable.growth)
            if factor not in rates:
                rates[factor] = self._learning_rate * factor
            targets.append(Target(var, mtf.cast(grad, tf.float32), rates[factor], decay / factor))
        return self.updates(targets) if targets else []

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """Returns a variable's learning rate divided by its learning rate in the small model.

        The small model is the model whose hyperparameters are transferred (`transfer_from`). The
        default is the rule for Adam, whose updates have equally large elements in a wide model and
        in a small one (G. Yang et al., arXiv:2203.03466, table 3). Weight decay is divided by the
        result.
        """
        return 1 / growth.inputs if role.kind in (MATRIX, HEAD) else 1.0

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """Returns the operations that update one or more variables, by default with `move`."""
        scalars = self.scalars(targets[0].var.mesh)
        return [
            UpdateOperation(
                self.name,
                [var, *(slot(var, name) for name in self.slots)],
                [grad, rate, *scalars],
                partial(self._shrink_and_move, decay),
            )
            for var, grad, rate, decay in targets
        ]

    def scalars(self, mesh: Mesh) -> list[mtf.Tensor]:
        """Returns further inputs of `move`, float32 scalars that are the same for all variables."""
        del mesh
        return []

    def move(self, rate: tf.Tensor, var: tf.Variable, *state: Any) -> None:
        """Updates a processor's slice of a variable, after its weight decay.

        `rate` is the learning rate. `state` are the slices of the slots, the slice of the gradient,
        and `scalars`. Each element must be computed on its own.
        """
        raise NotImplementedError

    def _shrink_and_move(self, decay: float, var: tf.Variable, *rest: Any) -> None:
        count = len(self.slots) + 1  # The slots and the gradient come before the rate.
        rate = rest[count]
        self.shrink(var, rate, decay)
        self.move(rate, var, *rest[:count], *rest[count + 1 :])

    def of_update_number(
        self, mesh: Mesh, fn: Callable[[tf.Tensor], tf.Tensor], name: str
    ) -> mtf.Tensor:
        """Computes a function of the update number, such as a bias correction.

        The update number is a float32 scalar and begins at 1. Skipped steps do not count.
        """
        number = self.update_number
        if number is None:
            number = mtf.cast(mesh.step, tf.float32) + 1.0
        return mtf.cwise(fn, [number], tf.float32, grad_function=0, name=name)

    def shared(self, key: Hashable, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns a small tensor that many updates need, made once for each key."""

        def make_alone() -> tf.Tensor:
            # Otherwise all updates would wait for the first update's gradient; see
            # `UpdateOperation.lower`.
            with tf.control_dependencies(None):
                return make()

        return self._shared(key, make_alone)

    def constant(self, value: float) -> tf.Tensor:
        """Returns a float32 scalar."""
        return self.shared(value, lambda: tf.constant(value, tf.float32))

    def shrink(self, var: tf.Variable, rate: tf.Tensor, weight_decay: float) -> None:
        """Multiplies a slice by `1 - rate * weight_decay`."""
        if not weight_decay:
            return
        factor = self.shared(
            ("shrink", rate.ref(), weight_decay, var.dtype),
            lambda: tf.cast(rate * weight_decay, var.dtype),
        )
        subtract_scaled(var, factor, var)


class UpdateOperation(mtf.Assign):
    """Updates a variable and its slots in place.

    Inputs: the gradient, of the variable's shape, and small tensors.
    """

    def __init__(
        self,
        name: str,
        variables: list[mtf.Variable],
        inputs: list[mtf.Tensor],
        update: Callable[..., None],
    ) -> None:
        """Creates the operation.

        Args:
          name: operation name.
          variables: the variable and its slots.
          inputs: the gradient, and small tensors, in the order of `update`'s arguments.
          update: assigns the variables. It is called with the processor's slices of the variables
            (`tf.Variable`), followed by its slices of the inputs (`tf.Tensor`). Each element must
            be computed on its own. For sums over a variable, write an operation.
        """
        super().__init__(variables, inputs, assign_fn=None, name=name)
        self._update = update

    def is_local(self, layout: Layout) -> bool:
        del layout
        # `update` gets slices, not the lowering, and so has no collectives.
        return type(self).lower is UpdateOperation.lower

    def lower(self, lowering: Lowering) -> None:
        slices = [variable_slice(lowering, x) for x in self.variables]
        inputs = [lowering.slice(x) for x in self.inputs]
        # Without this dependency, tensors that depend only on variables, such as `beta1 * m`, would
        # be computed for all variables at the beginning of the step, and stay in memory.
        with tf.control_dependencies(inputs):
            self._update(*slices, *inputs)


def slot(var: mtf.Variable, name: str, shape: mtf.Shape | None = None) -> mtf.Variable:
    """Returns a float32 variable `<var>/<name>` of zeros, by default with the shape of `var`."""
    return step_variable(
        var.mesh, f"{var.name}/{name}", shape=var.shape if shape is None else shape
    ).operation


def step_variable(
    mesh: Mesh, name: str, value: float = 0.0, shape: mtf.Shape | None = None
) -> mtf.Tensor:
    """Returns a float32 variable, by default a scalar, that is assigned and not trained."""
    initializer = tf1.constant_initializer(value) if value else tf1.zeros_initializer()
    shape = shape or mtf.Shape([])
    return mtf.get_variable(mesh, name, shape, initializer=initializer, trainable=False)


def variable_slice(lowering: Lowering, var: mtf.Variable) -> tf.Variable:
    """Returns the processor's slice of a variable, to be read at this point of the step."""
    return lowering.variables[var].laid_out_tensor.slice


def subtract_scaled(var: tf.Variable, scale: tf.Tensor, update: tf.Tensor | tf.Variable) -> None:
    """Subtracts `scale * update` from a slice; both have one dtype, float32 if the slice has it."""
    if var.dtype == tf.float32:  # Stores no tensor for the product.
        tf.raw_ops.ResourceApplyGradientDescent(var=var.handle, alpha=scale, delta=update)
    else:
        subtract(var, scale * update)


def subtract(var: tf.Variable, update: tf.Tensor) -> None:
    """Subtracts a float32 update from a slice of any dtype."""
    var.assign_sub(tf.cast(update, var.dtype), read_value=False)
