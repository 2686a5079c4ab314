"""check_layout finds a layout that computes other values than one device, and the operation."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.layout_check import LayoutCheck
from t2tp.mesh.layout import Layout
from t2tp.optim.clipping import global_norm

BATCH, D_IN, D_FF = mtf.Dimension("batch", 8), mtf.Dimension("d_in", 4), mtf.Dimension("d_ff", 12)
FEATURES = {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))}
X = np.random.default_rng(0).normal(size=(8, 4))


class WrongOperation(t2tp.Operation):
    """Sums x over `d_ff`, with a fault."""

    def __init__(self, x: mtf.Tensor, fault: str) -> None:
        super().__init__([x], name="wrong_sum")
        self._fault = fault
        self._outputs = [mtf.Tensor(self, x.shape - D_FF, x.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor]:
        (x,), (dy,) = self.inputs, grad_ys
        dx = mtf.broadcast(dy, x.shape)
        if self._fault == "gradient":
            dx = OwnNumberOperation(dx).outputs[0]
        return [dx]

    def lower(self, lowering) -> None:
        (x,), (y,) = self.inputs, self.outputs
        addend = tf.reduce_sum(lowering.slice(x), x.shape.dims.index(D_FF))
        if self._fault == "forgets to sum over the mesh":
            lowering.set_slice(y, addend)
        elif self._fault == "one copy":
            lowering.set_partial_sum(y, addend, [D_FF])
            last = tf.equal(lowering.mesh_impl(self).laid_out_pnum().slice, 3)
            lowering.set_slice(y, lowering.slice(y) + tf.where(last, 1e-9, 0.0))
        else:
            lowering.set_partial_sum(y, addend, [D_FF])


class OwnNumberOperation(t2tp.Operation):
    """Adds each processor's number to x, which no operation may do."""

    def __init__(self, x: mtf.Tensor) -> None:
        super().__init__([x], name="own_number")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering) -> None:
        pnum = tf.cast(lowering.mesh_impl(self).laid_out_pnum().slice, tf.float32)
        lowering.set_slice(self.outputs[0], lowering.slice(self.inputs[0]) + pnum)


def step_with(fault: str = ""):
    """Returns an Adam step of a small network with dropout; one operation may be wrong."""

    def step_fn(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([D_IN, D_FF]))
        b = mtf.get_variable(mesh, "b", mtf.Shape([D_FF]), initializer=tf.zeros_initializer())
        hidden = mtf.tanh(mtf.einsum([features["x"], w], [BATCH, D_FF]) + b)
        hidden = mtf.dropout(hidden, is_training=True, keep_prob=0.9)
        loss = mtf.reduce_mean(mtf.square(WrongOperation(hidden, fault).outputs[0]))
        variables = mesh.graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        norm = global_norm(gradients)
        if fault == "update":
            gradients[0] = OwnNumberOperation(gradients[0]).outputs[0]
        mtf.optimize.AdafactorOptimizer(learning_rate=0.01).apply_grads(gradients, variables)
        return {"loss": loss, "norm": norm}

    return step_fn


def check(fault: str = "", layout: str | Layout = "batch:data;d_ff:model") -> LayoutCheck:
    mesh_shape = "data:2;model:2" if isinstance(layout, str) else ""
    return t2tp.check_layout(
        step_with(fault), FEATURES, {"x": X}, mesh_shape=mesh_shape, layout=layout
    )


EXACT = Layout("data:2;model:2", "batch:data;d_ff:model", exact_sums=2)


@pytest.mark.parametrize("layout", [EXACT, "batch:data+model", "d_in:model"], ids=str)
def test_a_layout_that_is_right_agrees(layout):
    found = check(layout=layout)
    assert found.agrees
    assert found.first is None
    kinds = [each.kind for each in found.compared]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "output": 2,
        "gradient": 2,
        "mask": 2,
        "update": 4,
    }
    assert "All 10 agree to 1e-12" in str(found)


def test_the_operation_that_forgets_to_sum_is_named():
    found = check("forgets to sum over the mesh")
    assert not found.agrees
    assert found.first.operation == "wrong_sum (WrongOperation)"
    assert found.first.inputs == ("dropout/dropout [batch=8/data, d_ff=12/model]",)
    assert "after the operation wrong_sum (WrongOperation), computed from" in str(found)
    wrong = {each.name for each in found.compared if not each.agrees}
    assert {"loss", "w", "b"} <= wrong


def test_one_copy_that_differs_by_a_billionth_is_found():
    """Only a copy is wrong, so the outputs, which processor 0 computes, do not show the error."""
    found = check("one copy")
    assert found.first.operation == "wrong_sum (WrongOperation)"
    assert 1e-10 < found.first.tensor.error < 2e-9


def test_a_wrong_gradient_is_found_where_the_loss_agrees():
    found = check("gradient")
    by_name = {(each.kind, each.name): each for each in found.compared}
    assert by_name["output", "loss"].agrees
    assert not by_name["gradient", "b"].agrees
    assert found.first.operation == "wrong_sum/gradients/own_number (OwnNumberOperation)"


def test_a_wrong_update_is_found_where_the_gradients_agree():
    found = check("update")
    assert {each.kind for each in found.compared if not each.agrees} == {"update"}
    assert found.first.operation == "own_number (OwnNumberOperation)"
