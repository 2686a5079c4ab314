"""Reads the variables of programs in float64."""

from __future__ import annotations

import numpy as np

from t2tp.layout_check.double_program import DoubleProgram
from t2tp.program.variables import SlicedVariable


def whole(program: DoubleProgram, variable: SlicedVariable) -> np.ndarray:
    """The global value of a variable."""
    value = np.zeros(variable.spec.shape.to_integer_list)
    for pnum in range(program.layout.size):
        part = program.layout.slices(variable.spec.shape, pnum)
        value[part] = program.value_of(variable, pnum)
    return value
