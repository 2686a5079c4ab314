"""Transfer of hyperparameters from a small model to a wide one (`transfer_from`).

If initial values, learning rates and scales follow the width, the best hyperparameters of a small
model are the best of a wide one (G. Yang et al., "Tensor Programs V", arXiv:2203.03466, tables 3
and 8). The roles of variables tell how they follow it. The model is built with the sizes of both
sets, and each variable is compared with its counterpart:

    small   layer_00/feed_forward/output   MATRIX  inputs d_ff=512    outputs d_model=128
    wide    layer_00/feed_forward/output   MATRIX  inputs d_ff=4096   outputs d_model=1024

Its inputs have grown 8 times, so its initial values are `8 ** -0.5` times the small model's, and
with Adam its learning rate is an eighth (`t2tp.optim.optimizer.Optimizer.rate_factor`). A head's
logits are divided by the growth of its inputs: its initial values and its rate are, which is the
same; where logits use the table of embeddings, `t2tp.layers.embedding` divides. The numbers of
layers change nothing: there are no rules for depth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from t2tp import registry, upstream
from t2tp.hparam import HParams
from t2tp.ops.variables.role import HEAD, MATRIX, Role

# Integers that the model keeps: its depth, and the sizes of the problem's data.
_NO_WIDTH = re.compile("layer|vocab|classes|batch|length")


class Growth(NamedTuple):
    """How many times more inputs and outputs a variable has than in the small model."""

    inputs: float = 1.0
    outputs: float = 1.0


class Transfer:
    """The comparison of a model with the small one whose hyperparameters it has.

    Attributes:
      small: the hparams of the small model: the model's own, with the sizes of `transfer_from`.
    """

    def __init__(self, hparams: HParams) -> None:
        """Reads the sizes of the set `transfer_from`: all integers but depth and sizes of the data.

        Raises:
          LookupError: no set has this name.
          ValueError: the set is of another model.
        """
        self._hparams = hparams
        self.small = hparams.copy()
        self.small.set("transfer_from", "")
        tuned = registry.hparams(hparams.transfer_from)
        for name, value in hparams.values().items():
            first = value[0] if isinstance(value, list) and value else value
            if type(first) is not int or _NO_WIDTH.search(name):
                continue
            if name not in tuned:
                raise ValueError(
                    f"transfer_from={hparams.transfer_from!r} is a set of another model: it has no"
                    f" {name}"
                )
            self.small.set(name, tuned.get(name))
        self._variables: dict[str, upstream.Variable] = {}

    @classmethod
    def from_hparams(cls, hparams: HParams) -> Transfer | None:
        """Reads `transfer_from` and sizes; None if there is no set to transfer from."""
        given = "transfer_from" in hparams and hparams.transfer_from
        return cls(hparams) if given else None

    def ratio(self, dim_name: str) -> float:
        """Returns how many times larger than in the small model a size is, such as `d_model`."""
        name = dim_name if dim_name in self.small else "hidden_size"
        return self._hparams.get(name) / self.small.get(name) if name in self.small else 1.0

    def compare_with(self, variables: Iterable[upstream.Variable]) -> None:
        """Sets the variables of the small model; before, no variable is compared."""
        for variable in variables:
            self._variables[variable.name] = variable

    def applied(self, name: str, role: Role, initializer: object) -> tuple[object, Growth]:
        """Returns the initial values of a variable, and its growth.

        Args:
          name: full name of the variable.
          role: its role.
          initializer: its initializer by the rules of the layer.

        Raises:
          ValueError: the small model has no such variable, or no initial values that can be scaled.
        """
        if not self._variables:
            return initializer, Growth()
        small = self._variables.get(name)
        if small is None or small.role is None or small.role.kind != role.kind:
            raise ValueError(
                f"transfer_from={self._hparams.transfer_from!r}: with its sizes the model has no"
                f" {role.kind} {name!r}"
            )
        growth = Growth(
            *(
                _size(dims) / _size(small_dims)
                for dims, small_dims in (
                    (role.inputs, small.role.inputs),
                    (role.outputs, small.role.outputs),
                )
            )
        )
        factor = {MATRIX: growth.inputs**-0.5, HEAD: 1 / growth.inputs}.get(role.kind, 1.0)
        return _scaled(small.get_master().initializer, factor, name), growth


def ratio(mesh: upstream.Mesh, dim_name: str) -> float:
    """Returns how many times larger than in the small model a size is; 1 without transfer."""
    transfer = getattr(mesh, "transfer", None)
    return 1.0 if transfer is None else transfer.ratio(dim_name)


def _size(dims: Iterable[upstream.Dimension]) -> int:
    return math.prod(dim.size for dim in dims)


def _scaled(initializer: Any, factor: float, name: str) -> object:
    kind = type(initializer).__name__
    if factor == 1.0 or kind in ("Zeros", "Ones"):
        return initializer
    if kind in ("RandomNormal", "TruncatedNormal"):
        return type(initializer)(initializer.mean * factor, initializer.stddev * factor)
    if kind == "RandomUniform":
        return type(initializer)(initializer.minval * factor, initializer.maxval * factor)
    raise ValueError(
        f"transfer_from cannot scale the initial values of {name!r}, {initializer!r}: use a normal,"
        " truncated normal or uniform initializer"
    )
