"""Initial values of matrices, by a named rule: a function of a matrix's inputs and outputs.

Layers ask for the standard deviation of `fan_in`, times a gain of their own: He's for a ReLU, less
for outputs of deep stacks. Another rule replaces the first factor and leaves the gain. With
`initializer=normal` and 0.02, `attention/output` [heads=4, d_kv=32, d_model=128] of 2 layers, whose
gain is (2 * 2) ** -0.5, has 0.02 * 0.5 = 0.01 in place of 128 ** -0.5 * 0.5 = 0.044.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from t2tp import mtf
from t2tp.hparam import HParams

# Rule -> standard deviation, of the numbers of inputs and outputs and `initializer_stddev`.
RULES: dict[str, Callable[[int, int, float], float]] = {
    # Outputs as large as inputs (Y. LeCun et al., "Efficient BackProp", 1998, section 4.6).
    "fan_in": lambda inputs, outputs, stddev: inputs**-0.5,
    # Outputs and gradients (X. Glorot and Y. Bengio, AISTATS 2010, equation 12).
    "fan_avg": lambda inputs, outputs, stddev: (2 / (inputs + outputs)) ** 0.5,
    # Features change as fast at any width (G. Yang et al., arXiv:2310.17813, section 4).
    "spectral": lambda inputs, outputs, stddev: inputs**-0.5 * min(1.0, outputs / inputs) ** 0.5,
    # The same for all, as in GPT-2.
    "normal": lambda inputs, outputs, stddev: stddev,
}


@dataclass(frozen=True)
class InitialValues:
    """A rule of initial values.

    Attributes:
      rule: a name in `RULES`.
      stddev: the standard deviation of the rule `normal`.
    """

    rule: str = "fan_in"
    stddev: float = 0.02

    @classmethod
    def from_hparams(cls, hparams: HParams) -> InitialValues | None:
        """Reads `initializer` and `initializer_stddev`; None for `fan_in`, which layers ask for."""
        if "initializer" not in hparams or hparams.initializer == "fan_in":
            return None
        return cls(hparams.initializer, hparams.initializer_stddev)

    def scale(self, role: mtf.Role) -> float:
        """Returns the standard deviation of a matrix relative to the rule `fan_in`."""
        inputs, outputs = (math.prod(d.size for d in dims) for dims in (role.inputs, role.outputs))
        return RULES[self.rule](inputs, outputs, self.stddev) * inputs**0.5


def of_mesh(mesh: mtf.Mesh) -> InitialValues:
    """Returns the rule of the layers that are being built on a mesh."""
    return getattr(mesh, "initial_values", None) or InitialValues()
