"""Operations declare properties, which the engine uses."""

import re

import numpy as np
import pytest

import t2tp
from t2tp import mtf
from t2tp.lowering import operation
from t2tp.lowering.signature import Signature
from tests.lowering import oracle

A, B = mtf.Dimension("a", 4), mtf.Dimension("b", 6)
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def run(step, mesh_shape="x:2", layout="a:x"):
    features = {"x": (mtf.Shape([A, B]), X)}
    return oracle.program_and_outputs(step, features, mesh_shape, layout)


def example():
    """Runs the example of the guide; returns the names that it defines."""
    (code,) = re.findall(r"```python\n(.*?)```", operation.__doc__, re.DOTALL)
    names: dict = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("layout", ["a:x", "b:x", "a:x;b:y"])
def test_the_guides_operation_and_its_gradient_are_right_in_any_layout(layout):
    sum_of_squares = example()["sum_of_squares"]

    def step(mesh, features):
        total = sum_of_squares(features["x"], A)
        return {"total": total, "dx": mtf.gradients([mtf.square(total)], [features["x"]])[0]}

    program, values = run(step, "x:2;y:2", layout)
    total = np.square(X).sum(0)
    np.testing.assert_allclose(values["total"], total, rtol=1e-5)
    np.testing.assert_allclose(values["dx"], 4 * X * total, rtol=1e-5)
    assert len(program.collectives()) == ("a:x" in layout)


class DoubleOperation(t2tp.Operation):
    """Doubles a processor's partial sum without reducing it."""

    def __init__(self, x, **declared):
        super().__init__([x], name="double")
        self.signature = Signature(**declared)
        self.set_outputs(x)

    def lower(self, lowering):
        addend, axes = lowering.partial_sum(self.inputs[0])
        lowering.set_sum_over_axes(self.outputs[0], 2 * addend, axes)


@pytest.mark.parametrize("accepts", [False, True])
def test_sums_that_all_users_accept_deferred_are_not_reduced_before_them(accepts):
    def step(mesh, features):
        total = mtf.reduce_sum(features["x"], reduced_dim=A)
        doubled = DoubleOperation(total, linear=accepts).outputs[0]
        rows = mtf.reduce_sum(features["x"] * 2.0, reduced_dim=A)
        return {"doubled": doubled, "sine": mtf.sin(rows) + 1.0}

    program, values = run(step)
    np.testing.assert_allclose(values["doubled"], 2 * X.sum(0), rtol=1e-5)
    # Otherwise the sum is reduced together with `rows`, and its double is reduced again.
    reduced = sum(size for _, size in program.collectives().values())
    assert reduced == (2 if accepts else 3) * B.size * 4


def test_an_operation_refuses_layouts_by_its_own_rules():
    class OddOperation(DoubleOperation):
        def check_layout(self, layout):
            raise t2tp.LayoutError(f"{self.name!r} on {layout.size} processors")

    def step(mesh, features):
        return {"y": OddOperation(features["x"]).outputs[0]}

    with pytest.raises(t2tp.LayoutError, match="'double' on 2 processors"):
        run(step)


def test_a_summed_dimension_and_one_of_the_output_are_not_split_over_one_axis():
    class TableOperation(t2tp.Operation):
        def __init__(self, mesh):
            super().__init__([mtf.ones(mesh, [A]), mtf.ones(mesh, [B])], name="table")
            self.signature = Signature(summed=[B])
            self.set_outputs(self.inputs[0])

    def step(mesh, features):
        return {"y": TableOperation(mesh).outputs[0]}

    with pytest.raises(t2tp.LayoutError, match="both its dimensions 'a' and 'b'"):
        t2tp.Program(step, mesh_shape="x:2", layout="a:x;b:x")
