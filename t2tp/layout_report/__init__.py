"""Reports the effect of a layout on a program: slices, memory and collectives.

`explain(program)` walks the lowered mtf graph (`analyze`) and collects plain data (`report`): each
variable and activation with its slices, each collective with the tensors that it serves
(`attribution`). Layers that differ only in their index become one line (`layer_groups`,
`grouping`). The same data is then written as text for a terminal (`text`) or as an HTML page with
diagrams (`html`, `svg`), both in the words of `wording`.
"""

from t2tp.layout_report.analyze import LayoutReport, explain

__all__ = ["LayoutReport", "explain"]
