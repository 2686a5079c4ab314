"""Reports the effect of a layout on a program: slices, memory and collectives.

`explain(program)` walks the lowered mtf graph (`analyze`) and collects plain data (`report`): each
variable and activation with its slices, and each collective with the tensors that it serves
(`attribution`). Tensors of several layers that differ only in the layer's index become one line
(`layer_groups`, `grouping`). The data are then written as text for a terminal (`text`) or as an
HTML page with diagrams (`html`, `svg`). Both use the phrases in `wording`.
"""

from t2tp.layout_report.analyze import LayoutReport, explain

__all__ = ["LayoutReport", "explain"]
