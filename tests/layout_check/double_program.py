"""Reads the variables of float64 programs."""

import numpy as np

from t2tp.layout_check.double_program import DoubleProgram
from t2tp.program.variables import SlicedVariable, real_part


def whole(program: DoubleProgram, variable: SlicedVariable) -> np.ndarray:
    """Returns the global value of a variable."""
    value = np.zeros(variable.spec.shape.to_integer_list)
    for pnum in variable.pnums:
        region = variable.region(pnum)
        value[region] = real_part(program.value_of(variable, pnum), region)
    return value


def values_of(program: DoubleProgram) -> dict[str, np.ndarray]:
    """Returns the global values of all variables by name."""
    return {v.spec.name: whole(program, v) for v in program.variables}
