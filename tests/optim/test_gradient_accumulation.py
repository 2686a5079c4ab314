"""Microbatches give the large batch's loss, gradients and dropout, with less memory."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.models.transformer_lm import TransformerLm
from t2tp.optim import train_step
from t2tp.optim.loss import LossOutput, LossTerm
from t2tp.trainer.planning import request
from tests.models import small_lm
from tests.optim.regression import make_hparams
from tests.optim.sharded_programs import training_step
from tests.warm_processes import printed


def program_of(mesh_shape="", **values):
    hparams = small_lm.make_hparams(**small_lm.DESCENT, clip_grad_norm=0.5, **values)
    step = training_step(TransformerLm(hparams, {"targets": small_lm.VOCAB_SIZE}))
    return t2tp.Program(step, small_lm.FEATURES, mesh_shape=mesh_shape, layout=hparams.layout)


@pytest.mark.parametrize("mesh_shape", ["data:2", "stage:2;data:2"])
def test_large_gradients_are_summed_over_the_mesh_once(mesh_shape):
    """A gradient of more than 1 MiB is not reduced together with others."""
    hparams = small_lm.make_hparams(
        microbatches=4,
        d_model=512,
        d_ff=1024,
        mesh_shape=mesh_shape,
        layout="batch:data;layers:stage",
    )
    program = request("transformer_lm", hparams, small_lm.VOCAB_SIZE).program(hparams)
    sums = [c for c in program.collective_log() if "data" in c.axes]
    assert {c.times for c in sums if c.bytes >= 1 << 20} == {1}


@pytest.mark.slow
def test_float16_is_scaled():
    """Four microbatches have the gradient norm of the whole batch."""
    whole, in_parts = (
        program_of(microbatches=n, activation_dtype="float16")(small_lm.make_batch(0))
        for n in (1, 4)
    )
    assert in_parts["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=1e-2)


@pytest.mark.slow
def test_eight_parts_need_a_fraction_of_the_memory(tmp_path):
    target = "tests.optim.step_memory:main"
    in_parts, whole = map(int, printed(target, [["8"], ["1"]], [{}, {}], tmp_path / "printed"))
    assert in_parts < whole / 3


def test_a_batch_that_cannot_be_cut_says_into_how_many_parts_it_can():
    with pytest.raises(ValueError, match="microbatches=3 does not divide a batch of 8.*1, 2, 4, 8"):
        program_of(microbatches=3)


def test_parts_that_a_mesh_cannot_split_are_refused_by_name():
    with pytest.raises(t2tp.mesh.layout.LayoutError, match="microbatch.*batch"):
        program_of("data:4", microbatches=4)


def linear_program(microbatches, feature="batch:8", mesh_shape="data:2", xla=None):
    """Returns a program that trains w, with the weighted mean of w * x as the loss."""
    hparams = make_hparams(optimizer="sgd", learning_rate_constant=1.0, microbatches=microbatches)

    def step(mesh, features):
        w = mtf.get_variable(mesh, "w", mtf.Shape([]), initializer=tf.ones_initializer())

        def loss_fn(part):
            weights = part["weights"]
            weight = mtf.reduce_sum(weights)
            mtf.scalar_summary("sum_of_x", mtf.reduce_sum(part["x"]))
            return LossOutput({"mean": LossTerm(mtf.reduce_sum(w * part["x"] * weights), weight)})

        return {"loss": train_step(loss_fn, features, mesh, hparams, 1).loss}

    features = {name: t2tp.Feature(feature) for name in ("x", "weights")}
    return t2tp.Program(step, features, mesh_shape=mesh_shape, layout="batch:data", xla=xla)


WEIGHTS = [[1, 0, 0, 0, 2, 2, 0, 3], [0.25, 0, 0, 0, 0, 0, 0, 0], [0] * 8]


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_parts_count_by_their_weights(microbatches, weights):
    x = np.arange(1, 9, dtype=np.float32)
    program = linear_program(microbatches)
    outputs = program({"x": x, "weights": np.array(weights, np.float32)})
    loss = outputs["loss"]
    wanted = np.dot(x, weights) / max(sum(weights), 1e-6)
    assert loss == pytest.approx(wanted, rel=1e-6)
    assert program.variables["w"].numpy() == pytest.approx(1 - wanted, rel=1e-6)


def test_of_scalar_summaries_the_average_is_shown():
    x = np.array([1, 2, 3, 4, 5, 6, 7, 9], np.float32)
    program = linear_program(2)
    outputs = program({"x": x, "weights": np.ones(8, np.float32)})
    assert outputs["summaries/sum_of_x"] == pytest.approx(37 / 2)


def test_features_without_a_batch_are_refused():
    with pytest.raises(ValueError, match="one dimension 'batch', and they have 0: x.*rows"):
        linear_program(2, feature="rows:8")
