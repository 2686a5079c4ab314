"""Tells layout errors from rounding: compares a step on a mesh with the step on one device.

Both steps compute in float64 (`double_program`), with 15 exact digits. A difference beyond rounding
is an error in an operation's lowering, in a layout, or in a model whose results depend on how it is
sliced. `check` runs both steps and compares loss, gradients, random masks and updated variables. If
they differ, it runs both steps again, compares all tensors, and finds the first operation with a
difference.
"""

from t2tp.layout_check.check import LayoutCheck, check_layout

__all__ = ["LayoutCheck", "check_layout"]
