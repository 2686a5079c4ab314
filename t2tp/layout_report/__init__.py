"""Reports the effect of a layout on a program: slices, memory and collectives.

`explain(program)` reads the analysis of the lowered step (`t2tp.step`) and collects plain data
(`report`): each variable and activation with its slices, the memory at the peak, and each
collective with the tensors that it serves. `sections` makes a `t2tp.report` of the data: text for a
terminal, and an HTML page with diagrams (`svg`). Tensors of several layers that differ only in the
layer's index become one line. `wording` has the phrases.
"""

from t2tp.layout_report.analyze import LayoutReport, explain

__all__ = ["LayoutReport", "explain"]
