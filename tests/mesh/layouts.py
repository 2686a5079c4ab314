"""Finds layouts that work for a graph."""

from hypothesis import strategies as st

from t2tp import mtf
from t2tp.lowering.lowering import all_operations
from t2tp.lowering.operation import check_operation
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.layout_conflicts import check_tensor


def dimension_names(graph: mtf.Graph) -> list[str]:
    """Returns the names of the graph's dimensions in the order of their first use."""
    tensors = (t for op in all_operations(graph.operations) for t in (*op.inputs, *op.outputs))
    return list(dict.fromkeys(name for t in tensors for name in t.shape.dimension_names))


def axis_names(mesh_shape: str) -> list[str]:
    """Returns the names of a mesh's axes, and of the joint axes of any two."""
    names = Layout(mesh_shape).mesh_shape.dimension_names
    return [*names, *(f"{a}+{b}" for a in names for b in names if a != b)]


def drawn(graph: mtf.Graph, mesh_shape: str, data: st.DataObject) -> str:
    """Returns rules that work for a graph, with axes that Hypothesis draws."""
    dims = data.draw(st.permutations(dimension_names(graph)))
    axes = st.sampled_from([None, *axis_names(mesh_shape)])  # None: no rule for the dimension.
    candidates = [(dim, axis) for dim in dims if (axis := data.draw(axes)) is not None]
    return rules_that_work(graph, mesh_shape, candidates)


def rules_that_work(graph, mesh_shape, candidates):
    """Returns layout rules: each (dimension, axis) candidate that the rules so far allow."""
    rules: list[str] = []
    for dim, axis in candidates:
        try:
            _check(graph, Layout(mesh_shape, ";".join([*rules, f"{dim}:{axis}"])))
        except LayoutError:
            continue
        rules.append(f"{dim}:{axis}")
    return ";".join(rules)


def _check(graph: mtf.Graph, layout: Layout) -> None:
    for op in all_operations(graph.operations):
        for tensor in op.outputs:
            check_tensor(layout, tensor.name, tensor.shape)
        if not isinstance(op, mtf.ImportLaidOutTensorOperation):
            check_operation(op, layout)
