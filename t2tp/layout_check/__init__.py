"""Answers "is it my layout, or rounding?": a step on a mesh beside the same step on one device.

Both compute in float64 (`double_program`), where rounding leaves 15 digits, so any larger
difference is an error: of an operation's lowering, of a layout, or of a model that looks at its
slices. `check` runs both and compares loss, gradients, random masks and updated variables; if they
differ, it runs both again for all tensors and finds the operation at which the difference begins.
"""

from t2tp.layout_check.check import LayoutCheck, check_layout

__all__ = ["LayoutCheck", "check_layout"]
