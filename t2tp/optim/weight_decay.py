"""Decoupled weight decay, and which variables it applies to."""

import re
from collections.abc import Sequence

from t2tp import mtf
from t2tp.building.mesh import declared
from t2tp.building.role import EMBEDDING, HEAD, MATRIX


class WeightDecay:
    """Decoupled weight decay: a step subtracts `learning_rate * rate` times the variable.

    I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101).
    Matrices and embeddings decay. Biases and the parameters of norms do not (see `mtf.Role`). A
    variable without a declared role decays if it has two dimensions or more.
    """

    def __init__(self, rate: float, exclude: str = "") -> None:
        """Selects the variables that decay.

        Args:
          rate: the decay relative to the learning rate; 0 for no decay.
          exclude: a regular expression. A variable is excluded if the expression matches a part of
            its name. Empty: no variable is excluded.

        Raises:
          ValueError: `exclude` is not a valid regular expression.
        """
        self._rate = rate
        self._exclude = exclude
        try:
            self._pattern = re.compile(exclude)
        except re.error as error:
            raise ValueError(
                f"weight_decay_exclude={exclude!r} is no regular expression: {error}"
            ) from error

    def rates(self, variables: Sequence[mtf.Variable]) -> list[float]:
        """Returns the decay of each variable.

        Raises:
          ValueError: `exclude` matches no variable's name.
        """
        if not self._rate or not variables:
            return [0.0] * len(variables)
        # Names of frozen variables count too: fine-tuning uses the hparams of the pretraining,
        # whose pattern may match only frozen variables.
        names = [var.name for var in variables[0].mesh.graph.all_variables]
        if self._exclude and not any(self._pattern.search(name) for name in names):
            raise ValueError(
                f"weight_decay_exclude={self._exclude!r} matches none of the variables:"
                f" {', '.join(names)}"
            )
        return [self._rate if self._decays(var) else 0.0 for var in variables]

    def _decays(self, var: mtf.Variable) -> bool:
        if self._exclude and self._pattern.search(var.name):
            return False
        role = declared(var).role
        return var.shape.ndims > 1 if role is None else role.kind in (MATRIX, HEAD, EMBEDDING)
