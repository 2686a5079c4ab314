"""The report matches the program's layout and graph."""

import dataclasses
import math
import re
from collections import Counter

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import t2tp
from t2tp import mtf
from t2tp.layout_report import wording
from t2tp.layout_report.report import SlicedTensor
from t2tp.mesh.collective_log import summarize
from t2tp.mesh.layout import Layout
from t2tp.planner import ClusterFile
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step.kernels import Kernels
from t2tp.step.memory import RESERVED
from t2tp.step.work import BACKWARD, FORWARD
from t2tp.trainer.planning import request
from tests.layout_report import samples
from tests.models.small_lm import make_hparams, training_program
from tests.pipeline import staged_steps


def by_name(lines):
    return {line.tensor.name: line for line in lines}


def test_variables_of_a_megatron_mlp():
    """The model axis halves the 12 x 6 floats; the data axis has two copies of each half."""
    variables = by_name(t2tp.explain(samples.mlp()).data.variables)
    assert list(variables) == ["w_in", "w_out"]
    w_in, w_out = (variables[name].tensor for name in ("w_in", "w_out"))
    assert w_in.describe() == "[d_model=6, d_ff=12/model]"
    assert (w_in.slice_shape, w_out.slice_shape) == ((6, 6), (6, 6))
    assert (w_in.slice_bytes, w_in.copies) == (144, 2)
    assert list(w_out.holders().values()) == [[0, 2], [1, 3]]
    assert [slot.name for slot in variables["w_in"].slots] == ["w_in/m"]
    assert variables["w_in"].slot_bytes == 144


PROGRAMS = {
    "mlp": samples.mlp,
    "mlp on one device": lambda: samples.mlp("", ""),
    "mlp, everything split": lambda: samples.mlp(
        "data:2;model:2;m2:2", samples.LAYOUT + ";d_model:m2"
    ),
    "layers": lambda: samples.layers(3),
    "loop": samples.loop,
    "microbatches": lambda: samples.microbatches(2),
    "language model": lambda: training_program("data:2;model:2", num_hidden_layers=2),
    "language model, data": lambda: training_program("data:4"),
    "language model, large gradients": lambda: training_program("data:2", d_ff=32768),
    "language model, adafactor": lambda: training_program(
        "model:4", optimizer="adafactor", weight_decay=0.0
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_totals_are_those_of_the_program(name):
    program = PROGRAMS[name]()
    data = t2tp.explain(program).data
    assert summarize(data.collectives) == program.collectives()
    for collective in data.collectives:
        assert sum(use.bytes for use in collective.uses) == collective.bytes
    for (kind, axes), (count, _) in program.collectives().items():
        assert re.search(rf"{kind} over {' and '.join(axes)} +{count} ", str(t2tp.explain(program)))


def test_every_gradient_of_a_language_model_is_known_as_its_variables():
    """Includes tied embeddings, whose gradient is a sum."""
    data = t2tp.explain(training_program("data:2;model:2")).data
    known = [
        use.gradient_of
        for collective in data.collectives
        for use in collective.uses
        if collective.axes == ("data",) and "/gradients/" in use.tensor
    ]
    trainable = {line.tensor.name for line in data.variables if line.trainable}
    assert sorted(known) == sorted(trainable)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_slices_add_up_to_the_tensor_times_its_copies(data):
    names = ["a", "b", "c", "vocab"]  # The vocabulary may be padded, also by whole slices.
    axes = [f"{axis}:{data.draw(st.integers(1, 3))}" for axis in "xyz"]
    axes = axes[: data.draw(st.integers(0, 3))]
    sizes = data.draw(st.lists(st.sampled_from([6, 12, 18]), max_size=3))
    dims = [mtf.Dimension(name, size) for name, size in zip(names, sizes, strict=False)]
    if data.draw(st.booleans()):
        dims.append(mtf.Dimension("vocab", data.draw(st.sampled_from([1, 2]))))
    rules = zip(data.draw(st.permutations(names)), axes, strict=False)
    layout = Layout(";".join(axes), ";".join(f"{dim}:{axis[0]}" for dim, axis in rules))
    tensor = SlicedTensor("t", mtf.Shape(dims), tf.float32, layout)
    if all(dim.size % 6 == 0 for dim in dims):
        assert layout.size * tensor.slice_bytes == tensor.copies * 4 * tensor.shape.size
    holders = tensor.holders()
    assert sorted(p for pnums in holders.values() for p in pnums) == list(range(layout.size))
    assert all(
        len(pnums) == tensor.copies for part, pnums in holders.items() if all(map(len, part))
    )
    elements = sum(math.prod(len(each) for each in part) for part in holders)
    assert elements == tensor.shape.size


def test_what_the_backward_pass_needs_is_kept_under_another_name_too():
    long = mtf.Dimension("long", 12)

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([samples.D_FF]))
        doubled = mtf.replace_dimensions(features["x"] * 2.0, long, samples.D_FF)
        loss = mtf.reduce_sum(mtf.square(mtf.stop_gradient(doubled) * w))
        return {"d_w": mtf.gradients([loss], [w])[0]}

    program = AbstractProgram(step, {"x": t2tp.Feature(mtf.Shape([samples.BATCH, long]))})
    activations = by_name(t2tp.explain(program).data.activations)
    assert activations["scalar_mul"].is_kept
    assert activations["x"].is_fed and not activations["x"].is_kept
    assert not any("reshape" in name or "stop" in name for name in activations)
    phases = {name: activation.phase for name, activation in activations.items()}
    assert phases["scalar_mul"] == FORWARD
    assert {p for name, p in phases.items() if "/gradients/" in name} == {BACKWARD}


def test_what_is_not_computed_is_not_said():
    """Operations that nothing uses are not lowered, and unused outputs are not reported."""

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([samples.D_MODEL]))
        unused = mtf.exp(features["x"])
        del unused
        largest, index = mtf.top_k(features["x"] * w, samples.D_MODEL, mtf.Dimension("k", 2))
        del index
        return {"largest": largest}

    program = AbstractProgram(step, samples.MLP_FEATURES)
    data = t2tp.explain(program, Kernels()).data
    assert [a.tensor.name for a in data.activations if not a.is_fed] == ["einsum", "top_k"]


def test_collectives_in_loops_are_said_to_be_there():
    report = t2tp.explain(samples.loop())
    (collective,) = report.data.collectives
    assert collective.in_loop and collective.uses[0].used == ("w",)
    assert "summed over d_ff, once an iteration" in str(report)
    made = by_name(report.data.activations)[collective.uses[0].tensor.removesuffix(":0")]
    assert made.in_loop


@pytest.mark.parametrize("count", [2, 4])
def test_microbatches_keep_less_and_move_as_much(count):
    """Only one microbatch's activations are kept; each microbatch has its own collectives."""

    def kept_and_moved(count):
        data = t2tp.explain(samples.microbatches(count)).data
        kept = sum(a.tensor.slice_bytes for a in data.activations if a.is_kept)
        by_phase = Counter()
        for collective in data.collectives:
            if collective.bytes > 4:  # larger than the loss
                by_phase[collective.phase] += collective.bytes * collective.times
        return kept, by_phase

    (whole, moved), (part, moved_in_parts) = kept_and_moved(1), kept_and_moved(count)
    scalars = 64  # of the loss and its weight, whose sizes do not depend on the batch
    assert whole / count <= part <= whole / count + scalars
    assert moved[FORWARD] and moved_in_parts == moved


def test_gradients_summed_over_microbatches_are_said_to_be_their_variables():
    said = str(t2tp.explain(samples.microbatches(4)))
    assert (
        "allreduce over data of its gradient, 144 B, summed over batch, together with 2 more"
        in said
    )
    assert re.search(r" 4 +96 B  in all\n", said)
    assert re.search(r" 1 +24 B  forward: einsum_1, summed over d_ff, in a loop of 4\n", said)


def test_slots_are_found_by_their_variables_names():
    kept = ("w_slot_vr", "w/b_momentum_v", "w/b/adam_m", "w_count")

    def step(mesh, features):
        for name in ("w", "w/b"):
            w = mtf.get_variable(mesh, name, mtf.Shape([samples.D_FF]))
            mtf.assign(w.operation, 2.0 * w)
        for name in kept:
            mtf.get_variable(mesh, name, mtf.Shape([samples.D_FF]), trainable=False)
        return {"w": w}

    program = AbstractProgram(step, mesh_shape="model:2", layout="d_ff:model")
    variables = by_name(t2tp.explain(program).data.variables)
    slots = {name: [slot.name for slot in line.slots] for name, line in variables.items()}
    assert slots == {"w": [kept[0]], "w/b": [kept[1], kept[2]], "w_count": []}
    assert not variables["w_count"].trainable


def test_like_layers_are_said_once():
    text = str(t2tp.explain(samples.layers(12)))
    assert "layer_{0..11}/w_in x 12  [d_model=6, d_ff=12/model]" in text
    assert re.search(r" 12 +96 B  forward: layer_{0..11}/einsum_1, summed over d_ff", text)
    assert "layer_3/" not in text


def test_rules_and_axes_without_effect_are_said():
    layout = "bacth:data;d_ff:model;heads:expert"
    text = str(t2tp.explain(samples.mlp("data:2;model:2", layout)))
    assert "mesh axis data of size 2 splits nothing" in text
    assert "unused, the mesh lacks the axis: heads:expert" in text
    assert "Warning: Layout rule 'bacth:data' has no effect" in text
    assert "Warning: Mesh axis 'data' of size 2 splits nothing" in text


# Layouts, and models of them, whose memory both reports count.
FITTING = {
    "one device": {"mesh_shape": ""},
    "tensor parallel": {"mesh_shape": "data:2;model:2"},
    "recomputed": {"mesh_shape": "data:4", "recompute": "layer"},
    "ZeRO 1, microbatches": {"mesh_shape": "data:4", "zero_stage": 1, "microbatches": 2},
    "ZeRO 3": {"mesh_shape": "data:4", "zero_stage": 3},
    "stages": {
        "mesh_shape": "stage:2;data:2",
        "layout": "layers:stage;batch:data",
        "microbatches": 4,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTING)
def test_a_layout_fits_where_the_plan_fits(name):
    """The device has a few bytes more, and then fewer, than the step and its headroom need."""
    wanted = request("transformer_lm", make_hparams(num_hidden_layers=4, **FITTING[name]), 30)
    data = t2tp.explain(wanted.program(wanted.hparams)).data
    cluster = ClusterFile.load("h200")
    plan = wanted.plan(cluster)
    assert sum(data.memory.values()) == pytest.approx(plan.memory_total - RESERVED, rel=1e-4)
    for memory, verdict in ((plan.memory_total / 0.949, "yes"), (plan.memory_total, "borderline")):
        device = dataclasses.replace(cluster.device, memory=memory)
        assert wanted.plan(dataclasses.replace(cluster, device=device)).fits == verdict
        assert data.fits(memory) == verdict


def test_it_says_which_devices_have_the_memory():
    data = t2tp.explain(samples.mlp()).data
    assert "for driver and libraries: fits in 8 GB" in str(t2tp.explain(samples.mlp()))
    for held, says in (
        (30, "fits in 40 GB, not in 24 GB"),
        (931, "more than a device of 192 GB has"),
    ):
        larger = dataclasses.replace(data, memory={"weights": held * 2**30})
        assert wording.fitting(larger).endswith(says)


def test_what_is_sharded_at_rest_and_what_is_not():
    hparams = {"mesh_shape": "data:2;model:2", "layout": "batch:data;d_ff:model", "zero_stage": 1}
    program = AbstractProgram(
        samples.mlp_step, samples.MLP_FEATURES, layout=Layout.from_hparams(hparams)
    )
    report = t2tp.explain(program)
    w_in = by_name(report.data.variables)["w_in"].tensor
    assert w_in.describe() == "[d_model=6/data, d_ff=12/model]"
    assert report.data.memory["weights"] == 2 * 72
    shown = str(report)
    assert "ZeRO stage 1: 2 of 2 variables are sharded at rest\n" in shown
    assert "allgather over data of it for the forward pass, 72 B, together with 1 more\n" in shown
    assert "@" not in shown


def test_the_schedule_of_a_pipeline_is_drawn():
    layout = Layout("stage:2", "layers:stage")

    def abstract(step, features, layout, xla):
        return AbstractProgram(step, features, layout=layout)

    report = t2tp.explain(staged_steps.program("lm", layout, 4, kind=abstract))
    text = str(report)
    copies = {line.tensor.name: line.tensor.copies for line in report.data.variables}
    assert (copies["embedding"], copies["layer_00/attention/q"]) == (2, 1)
    assert "256 B per device, on each device of its stage\n" in text
    assert "mesh axis stage of size 2 splits layers" in text
    assert "1f1b: 4 microbatches through 2 stages in 10 ticks; stages are idle 20.0%" in text
    assert "stage 1: 2 layers, layer_02, layer_03; activations of at most 1 at once" in text
    assert re.search(r"stage 0 +F0 F1 \.  B0 F2 B1 F3 B2 \.  B3\n", text)
    assert re.search(r"stage 1 +\.  F0 B0 F1 B1 F2 B2 F3 B3 \.\n", text)
    rows = re.findall(r"stage \d +[.FB].*", text)
    assert len(rows) == 2 and "\n".join(rows) in report.html()
