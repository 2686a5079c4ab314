"""Transfer of hyperparameters from a small model to a wide or deep one (`transfer_from`).

A wide model can use the best hyperparameters of a small one if initial values, learning rates and
scales are adapted to the wide model's width (G. Yang et al., "Tensor Programs V", arXiv:2203.03466,
tables 3 and 8). The rules depend on the role of a variable. The model is built twice, with the wide
and with the small sizes, and each variable is compared with its counterpart:

    small   layer_00/feed_forward/output   MATRIX  inputs d_ff=512    outputs d_model=128
    wide    layer_00/feed_forward/output   MATRIX  inputs d_ff=4096   outputs d_model=1024

The variable's inputs have grown 8 times. Its initial values are therefore `8 ** -0.5` times the
small model's, and with Adam its learning rate is an eighth
(`t2tp.optim.optimizer.Optimizer.rate_factor`). The matrix that computes logits is called a *head*.
The logits must be divided by the growth of the head's inputs. Dividing the head's initial values
and its learning rate by this growth has the same effect. For logits that use the embedding table,
`t2tp.layers.embedding` divides the activations.

A transformer with k times the small model's layers divides the output of each block by k, and keeps
initial values and rates (N. Dey et al., "CompleteP", arXiv:2505.01618, table 1, alpha = 1). The
change of the residual stream in a step then has the same size in both models. The counterpart of a
layer has the layer's number modulo the small model's number of layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from t2tp import registry, upstream
from t2tp.building.role import HEAD, MATRIX, Role
from t2tp.hparam import HParams

# Integer hparams that are not widths: the depth, and sizes that the problem's data determines.
_NO_WIDTH = re.compile("layer|vocab|classes|batch|length")
DEPTH = "num_hidden_layers"
# The scope of a layer.
_LAYER = re.compile(r"\blayer_(\d+)\b")
_OTHER_DEPTHS = ("num_encoder_layers", "num_decoder_layers")


class Growth(NamedTuple):
    """A variable's numbers of inputs and outputs, divided by the small model's numbers."""

    inputs: float = 1.0
    outputs: float = 1.0


SAME_SIZE = Growth()


class SmallVariable(NamedTuple):
    """The role and the initializer of a variable of the small model."""

    role: Role
    initializer: object


class Transfer:
    """Compares a wide model with the small model on which its hyperparameters were tuned.

    Attributes:
      small: the small model's hparams. They are the wide model's hparams, except that the widths,
        and in transformers the depth, come from the set `transfer_from`.
    """

    def __init__(self, hparams: HParams) -> None:
        """Reads the widths of the set `transfer_from`.

        Raises:
          LookupError: no set has this name.
          ValueError: the set belongs to another model, or it has another depth, and encoder or
            decoder have a depth of their own.
        """
        self._hparams = hparams
        self.small = hparams.copy()
        self.small.set("transfer_from", "")
        tuned = registry.hparams(hparams.transfer_from)
        for name, value in hparams.values().items():
            first = value[0] if isinstance(value, list) and value else value
            is_depth = name == DEPTH and "num_heads" in hparams
            if type(first) is not int or (_NO_WIDTH.search(name) and not is_depth):
                continue
            if name not in tuned:
                raise ValueError(
                    f"transfer_from={hparams.transfer_from!r} is a set of another model: it has no"
                    f" {name}"
                )
            self.small.set(name, tuned.get(name))
        for name in _OTHER_DEPTHS:
            if name in hparams and hparams.get(name) and self.ratio(DEPTH) != 1:
                raise ValueError(
                    f"transfer_from={hparams.transfer_from!r} has another {DEPTH}, and"
                    f" {name}={hparams.get(name)} has no rule: set {name}=0"
                )
        self._variables: Mapping[str, SmallVariable] = {}

    @classmethod
    def from_hparams(cls, hparams: HParams) -> Transfer | None:
        """Reads `transfer_from`; returns None if it is empty."""
        is_set = "transfer_from" in hparams and hparams.transfer_from
        return cls(hparams) if is_set else None

    def ratio(self, dim_name: str) -> float:
        """Returns a size, such as `d_model`, divided by the small model's size."""
        # Some models have the hparam `hidden_size` for all sizes, and some have no widths.
        name = dim_name if dim_name in self.small else "hidden_size"
        return self._hparams.get(name) / self.small.get(name) if name in self.small else 1.0

    def resolved(self) -> HParams:
        """Returns a transformer's hparams with the scales of this transfer, without it."""
        result, width = self._hparams.copy(), self.ratio("d_model")
        result.set("transfer_from", "")
        own = result.attention_multiplier
        result.attention_multiplier = (
            own / self.ratio("d_kv") if own else (result.d_kv * self.ratio("d_kv")) ** -0.5
        )
        result.residual_multiplier /= self.ratio(DEPTH)
        result.logits_divisor *= width**0.5 if result.scale_decoder_outputs else width
        if result.scale_embeddings:
            result.embedding_multiplier /= width**0.5
        return result

    def set_small_variables(self, variables: Mapping[str, SmallVariable]) -> None:
        """Sets the small model's variables with a role. Until then, nothing is scaled."""
        self._variables = variables

    def scaled_initializer(self, name: str, role: Role, default: object) -> tuple[object, Growth]:
        """Returns the small model's initializer, scaled for a variable, and the variable's growth.

        Without small variables, returns `default`, the layer's initializer.

        Raises:
          ValueError: the small model has no such variable, or its initializer cannot be scaled.
        """
        if not self._variables:
            return default, SAME_SIZE
        small = self._variables.get(self._counterpart(name))
        if small is None or small.role.kind != role.kind:
            raise ValueError(
                f"transfer_from={self._hparams.transfer_from!r}: the model with the sizes of that"
                f" set has no {role.kind} {name!r}"
            )
        growth = Growth(
            _size(role.inputs) / _size(small.role.inputs),
            _size(role.outputs) / _size(small.role.outputs),
        )
        factor = {MATRIX: growth.inputs**-0.5, HEAD: 1 / growth.inputs}.get(role.kind, 1.0)
        return _scaled(small.initializer, factor, name), growth

    def _counterpart(self, name: str) -> str:
        if DEPTH not in self.small:
            return name
        depth = self.small.get(DEPTH)
        return _LAYER.sub(lambda layer: f"layer_{int(layer[1]) % depth:02d}", name)


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
