"""Answers "is it my layout, or rounding?": compares a step on a mesh with one on one device.

Both steps compute in float64 (`double_program`), where rounding leaves 15 digits. A larger
difference is an error in an operation's lowering, in a layout, or in a model that looks at its
slices. `check` runs both and compares loss, gradients, random masks and updated variables. If they
differ, it runs both again for all tensors and finds the operation at which the difference begins.
"""

from t2tp.layout_check.check import LayoutCheck, check_layout

__all__ = ["LayoutCheck", "check_layout"]
