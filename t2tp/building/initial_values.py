"""Rules for initial values: a matrix's standard deviation from its numbers of inputs and outputs.

A layer requests a standard deviation of `inputs ** -0.5 * gain`. The first factor is the rule
`fan_in`; another rule replaces it. The layer determines the gain: sqrt(2) before ReLUs (He), or
below 1 for outputs of deep stacks.

Example: `attention/output` [heads=4, d_kv=32, d_model=128] in a stack of 2 layers has 4 * 32 = 128
inputs and the gain (2 * 2) ** -0.5 = 0.5. Its standard deviation is 128 ** -0.5 * 0.5 = 0.044 with
`fan_in`, and 0.02 * 0.5 = 0.01 with `initializer=normal` and `initializer_stddev=0.02`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from t2tp.building.role import Role
from t2tp.hparam import HParams

# Rule -> function (number of inputs, number of outputs, `initializer_stddev`) -> stddev.
RULES: dict[str, Callable[[int, int, float], float]] = {
    # Keeps outputs as large as inputs (Y. LeCun et al., "Efficient BackProp", 1998, section 4.6).
    "fan_in": lambda inputs, outputs, stddev: inputs**-0.5,
    # Keeps the size of outputs and gradients (X. Glorot and Y. Bengio, AISTATS 2010, equation 12).
    "fan_avg": lambda inputs, outputs, stddev: (2 / (inputs + outputs)) ** 0.5,
    # Features learn at the same speed at any width (G. Yang et al., arXiv:2310.17813, section 4).
    "spectral": lambda inputs, outputs, stddev: inputs**-0.5 * min(1.0, outputs / inputs) ** 0.5,
    # One standard deviation for all matrices, as in GPT-2.
    "normal": lambda inputs, outputs, stddev: stddev,
}


@dataclass(frozen=True)
class InitialValues:
    """A rule of initial values; `stddev` is the standard deviation of the rule `normal`."""

    rule: str = "fan_in"
    stddev: float = 0.02

    @classmethod
    def from_hparams(cls, hparams: HParams) -> InitialValues:
        """Reads `initializer` and `initializer_stddev`, if they are declared."""
        if "initializer" not in hparams:
            return FAN_IN
        return cls(hparams.initializer, hparams.initializer_stddev)

    def scale(self, role: Role) -> float:
        """Returns the standard deviation of a matrix relative to the rule `fan_in`."""
        inputs, outputs = (math.prod(d.size for d in dims) for dims in (role.inputs, role.outputs))
        return RULES[self.rule](inputs, outputs, self.stddev) * inputs**0.5


FAN_IN = InitialValues()
