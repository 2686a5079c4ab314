"""Adds an operation, a schedule, a kind of collective and a dimension, as one would.

Each has only the code that CONTRIBUTING.md asks for. The engine, reports and plans do the rest.
"""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import mtf, registry
from t2tp.lowering.operation import signature_of
from t2tp.lowering.signature import DROPPED, Signature
from t2tp.mesh import collective_kinds, dimensions
from t2tp.mesh.collective_kinds import ALL_TO_ALL, CollectiveKind, one_message
from t2tp.mesh.dimensions import Declared
from t2tp.mesh.layout import Layout, LayoutError
from t2tp.mesh.layout_text import parse_mesh_shape
from t2tp.pipeline.schedule import Action
from t2tp.pipeline.schedules import (
    OneForwardOneBackward,
    lowered_schedule,
    pipeline_schedule,
    searched_schedules,
)
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step.slices import kind_of
from t2tp.step.work import FORWARD, Traffic
from tests.ops.on_mesh import in_float64, normal, with_gradients


class CubeOperation(t2tp.Operation):
    signature = Signature()

    def __init__(self, x):
        super().__init__([x], name="cube")
        self.set_outputs(x)

    def gradient(self, grad_ys):
        return [3.0 * mtf.square(self.inputs[0]) * grad_ys[0]]

    def lower(self, lowering):
        x = lowering.slice(self.inputs[0])
        lowering.set_slice(self.outputs[0], x * x * x)


class SumOfCubesOperation(CubeOperation):
    signature = Signature(summed=DROPPED, pads=True)

    def __init__(self, x, dim):
        t2tp.Operation.__init__(self, [x], name="sum_of_cubes")
        self._axis = x.shape.dims.index(dim)
        self.set_outputs((x.shape - dim, x.dtype))
        self._dim = dim

    def lower(self, lowering):
        x = lowering.masked_slice(self.inputs[0])
        total = tf.reduce_sum(x * x * x, self._axis)
        lowering.set_partial_sum(self.outputs[0], total, [self._dim])


def summed(x):
    return SumOfCubesOperation(x, x.shape.dims[-1]).outputs[0]


OPERATIONS = {
    "elementwise": (lambda x: CubeOperation(x).outputs[0], lambda x: x**3),
    "sum": (summed, lambda x: tf.reduce_sum(x**3, -1)),
}


# The axis of size 4 does not divide the 10 elements of `vocab`, which are padded.
@pytest.mark.parametrize("layout", ["", "batch:x", "vocab:y", "batch:x;vocab:y"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_new_operation_is_right_on_a_layout_and_with_padding(name, layout):
    op, formula = OPERATIONS[name]
    inputs = {"x": normal("batch:4;vocab:10")}
    found = with_gradients(op, inputs, "x:2;y:4", layout)
    for key, value in in_float64(formula, inputs).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_what_reports_plans_and_exact_sums_need_follows_from_a_signature():
    rows, features = mtf.Dimension("batch", 16), {"x": t2tp.Feature("batch:16;heads:64")}
    seen = []

    def step(mesh, given):
        seen[:] = [CubeOperation(given["x"]), SumOfCubesOperation(given["x"], rows)]
        return {str(i): op.outputs[0] for i, op in enumerate(seen)}

    x, bits = {"x": normal("batch:16;heads:64")[1].astype(np.float32)}, []
    for mesh_shape in ("", "data:4", "data:2;model:2"):
        layout = Layout(mesh_shape, "batch:data;heads:model", exact_sums=8)
        bits.append(t2tp.Program(step, features, layout=layout)(x)["1"].tobytes())
    assert bits[0] == bits[1] == bits[2]
    assert [kind_of(op) for op in seen] == ["elementwise", "reduce"]
    assert [op.is_local(layout) for op in seen] == [True, False]
    program = AbstractProgram(step, features, layout=layout.without_exact_sums())
    assert "allreduce over data" in str(t2tp.explain(program))


def test_of_an_operation_without_a_signature_nothing_is_assumed():
    class SilentOperation(SumOfCubesOperation):
        signature = None

    x = mtf.zeros(mtf.Mesh(mtf.Graph(), "mesh"), "batch:4;vocab:10")
    op = SilentOperation(x, x.shape.dims[0])
    assert not signature_of(op).is_elementwise(op, x.shape.dims[1])
    with pytest.raises(LayoutError, match="padding"):
        with_gradients(
            lambda x: SilentOperation(x, x.shape.dims[0]).outputs[0],
            {"x": normal("batch:4;vocab:10")},
            "y:4",
            "vocab:y",
        )


class WeightsLast(OneForwardOneBackward):
    """Gradients of weights after everything else."""

    def order(self, stage, stages, microbatches, chunks):
        order = super().order(stage, stages, microbatches, chunks)
        passes = [entry for entry in order if entry.action is Action.BACKWARD]
        return [*order, *(entry._replace(action=Action.WEIGHTS) for entry in passes)]


@pytest.fixture
def weights_last(monkeypatch):
    schedules = registry._registries["pipeline schedule"]
    monkeypatch.setattr(schedules, "_entries", dict(schedules._entries))
    registry.register_pipeline_schedule(WeightsLast)
    return "weights_last"


def test_a_new_schedule_is_run_searched_and_planned(weights_last):
    schedule = pipeline_schedule(weights_last)
    table = schedule.table(3, 5, 1)
    table.check()
    assert schedule.splits_backward and weights_last in searched_schedules()
    hparams = registry.hparams("transformer_lm_tiny")
    for name, value in {
        "num_hidden_layers": 4,
        "mesh_shape": "stage:2",
        "layout": "layers:stage",
        "microbatches": 4,
    }.items():
        hparams.set(name, value)
    plans = {}
    for hparams.pipeline_schedule in (weights_last, lowered_schedule(True), "1f1b"):
        name = hparams.pipeline_schedule
        plans[name] = t2tp.plan("transformer_lm", hparams, cluster="h100", vocab_size=512)
    late, split, joint = plans.values()
    assert late.pipeline is not None and late.bubble != joint.bubble
    assert late.memory_total > split.memory_total


SHIFT = CollectiveKind("shift", lambda size: 1, one_message)


def test_a_new_kind_of_collective_is_priced_and_an_unknown_one_is_refused(monkeypatch):
    monkeypatch.setattr(collective_kinds, "_kinds", dict(collective_kinds._kinds))
    cost = CollectiveCost(ClusterFile.load("h100"), parse_mesh_shape("data:4"))
    traffic = Traffic("shift", ("data",), FORWARD, 1, 1 << 20, False)
    with pytest.raises(ValueError, match="'shift'.*permute"):
        cost.seconds(traffic)
    collective_kinds.register(SHIFT)
    permute = Traffic("permute", ("data",), FORWARD, 1, 1 << 20, False)
    assert cost.seconds(traffic) == cost.seconds(permute) > 0
    with pytest.raises(ValueError, match="two kinds"):
        collective_kinds.register(CollectiveKind("shift", lambda size: 2, one_message))
    both_ways = lambda size: 2 * ALL_TO_ALL.sent_bytes(size)  # noqa: E731
    collective_kinds.register(replace(ALL_TO_ALL, name="fan", sent_bytes=both_ways))
    fan, twice = replace(traffic, kind="fan"), replace(traffic, kind="alltoall", num_bytes=2 << 20)
    assert (
        cost.seconds(fan) == cost.seconds(twice) > cost.seconds(replace(traffic, kind="alltoall"))
    )


def test_a_new_collective_is_in_the_report(monkeypatch):
    monkeypatch.setattr(collective_kinds, "_kinds", dict(collective_kinds._kinds))

    class ShiftOperation(CubeOperation):
        signature = Signature(ordered=[mtf.Dimension("batch", 4)])

        def lower(self, lowering):
            collectives, x = lowering.mesh_impl(self).collectives, lowering.slice(self.inputs[0])
            collectives.record(SHIFT, [0], x)
            lowering.set_slice(self.outputs[0], x)

    program = AbstractProgram(
        lambda mesh, given: {"y": ShiftOperation(given["x"]).outputs[0]},
        {"x": t2tp.Feature("batch:4")},
        layout=Layout("data:2", "batch:data"),
    )
    assert program.collectives() == {("shift", ("data",)): (1, 2 * 4)}
    assert "shift over data" in str(t2tp.explain(program))


def test_a_declared_dimension_is_padded_and_suggested(monkeypatch):
    monkeypatch.setattr(dimensions, "_declared", dict(dimensions._declared))
    dimensions.declare(Declared("d_state", padded=True, exact=True))
    layout = Layout("model:4", "d_state:model", exact_sums=8)
    assert layout.is_padded(mtf.Dimension("d_state", 10)) and "d_state" in layout.exactly_split
    assert Layout.may_pad(mtf.Dimension("d_state", 10))
    with pytest.raises(ValueError, match="'d_state' is declared twice"):
        dimensions.declare(Declared("d_state"))


def test_the_report_names_the_dimensions_that_no_rule_names():
    def step(mesh, given):
        w = mtf.get_variable(mesh, "w", "batch:4;d_state:6;d_model:8")
        return {"y": mtf.reduce_sum(w * given["x"])}

    program = AbstractProgram(
        step, {"x": t2tp.Feature("batch:4")}, layout=Layout("data:2", "batch:data;d_model:model")
    )
    assert "no rule names d_state" in str(t2tp.explain(program))
