"""Which variables shrink, and by how much."""

from __future__ import annotations

import re
from collections.abc import Sequence

from t2tp import mtf
from t2tp.hparam import HParams


class WeightDecay:
    """Decoupled weight decay: a step takes the part `learning_rate * rate` of a variable away.

    I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization" (arXiv:1711.05101). Scalars
    and vectors, such as biases and the scales of norms, are left as they are.
    """

    def __init__(self, rate: float = 0.0, exclude: str = "") -> None:
        """Says what decays.

        Args:
          rate: 0: nothing.
          exclude: a regular expression, looked for anywhere in a variable's name: where it is
            found nothing decays either. Empty: no such names.

        Raises:
          ValueError: `exclude` is no regular expression.
        """
        self._rate = rate
        self._exclude = exclude
        try:
            self._pattern = re.compile(exclude)
        except re.error as error:
            raise ValueError(
                f"weight_decay_exclude={exclude!r} is no regular expression: {error}"
            ) from error

    @classmethod
    def of(cls, hparams: HParams) -> WeightDecay:
        """Reads `weight_decay` and `weight_decay_exclude`."""
        return cls(hparams.weight_decay, hparams.weight_decay_exclude)

    def of_each(self, variables: Sequence[mtf.Variable]) -> list[float]:
        """The decay of each of the variables.

        Raises:
          ValueError: no variable has a name that `exclude` matches.
        """
        if not self._rate:
            return [0.0] * len(variables)
        names = [var.name for var in variables]
        if self._exclude and not any(self._pattern.search(name) for name in names):
            raise ValueError(
                f"weight_decay_exclude={self._exclude!r} matches none of the variables:"
                f" {', '.join(names)}"
            )
        return [self._rate if self._decays(var) else 0.0 for var in variables]

    def _decays(self, var: mtf.Variable) -> bool:
        is_excluded = self._exclude and self._pattern.search(var.name)
        return var.shape.ndims > 1 and not is_excluded
