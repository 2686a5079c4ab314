"""Stacks of layers: recomputation, shared layers, norms before and after blocks."""

import functools

import numpy as np
import pytest

from t2tp import mtf
from t2tp.layers.attention import SelfAttention
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.heads import Heads
from t2tp.layers.mixture_of_experts import MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import FullForward, Prefill, SequenceInfo
from t2tp.layers.stack import Stack
from t2tp.layers.transformer_layer import Layer, Residual
from tests.layers.running import run

SHAPE = "batch:4;length:6"
INPUTS = {
    "x": (f"{SHAPE};d_model:8", np.random.default_rng(0).normal(size=[4, 6, 8])),
    "segments": (SHAPE, np.array([[1] * 6, [1, 1, 2, 2, 2, 0], [1] * 6, [1, 2, 3, 4, 5, 6]])),
    "positions": (SHAPE, np.tile(np.arange(6), (4, 1))),
}


def layer(with_experts=False):
    attention = SelfAttention(Heads(2, 4), causal=True, attention_dropout=0.2)
    network = FeedForward("relu", 16, relu_dropout=0.2)
    if with_experts:
        network = MixtureOfExperts(RoutingConfig(4), FeedForward("relu", 16))
    return Layer(attention, network)


def stack(layers, norm_position="pre", dropout=0.2, **options):
    return Stack(layers, Residual(Norm(), norm_position, Dropout(dropout)), **options)


@functools.cache
def trained_with(recompute, mesh_shape=""):
    """Returns loss and gradients, with dropout on and experts in the second layer."""

    def build(x, segments, positions):
        layers = [layer(), layer(with_experts=True)]
        forward = FullForward(SequenceInfo(positions, segments), training=True)
        y, (totals,) = stack(layers, recompute=recompute)(x, forward)
        loss = mtf.reduce_sum(mtf.square(y)) + mtf.reduce_sum(totals.sums.load_balance)
        variables = x.graph.trainable_variables
        grads = mtf.gradients([loss], [x, *(v.value for v in variables)])
        names = ["x", *(v.name for v in variables)]
        return {"loss": loss, **dict(zip(names, grads, strict=True))}

    return run(build, INPUTS, mesh_shape, "batch:data;experts:data;heads:model;d_ff:model")


@pytest.mark.parametrize("mesh_shape", ["", "data:2;model:2"])
@pytest.mark.parametrize("recompute", ["layer", "attention", "feed_forward"])
def test_computing_again_changes_no_bit_of_the_loss(recompute, mesh_shape):
    plain, again = trained_with("none", mesh_shape), trained_with(recompute, mesh_shape)
    assert plain["loss"] == again["loss"]
    assert set(plain) == set(again)
    for name, gradient in plain.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(again[name], gradient, rtol=0, atol=2e-6 * scale, err_msg=name)


def test_a_layer_computed_again_repeats_its_sums():
    """Only the first block's sum is repeated, because nothing needs the second one's again."""

    def reductions(recompute):
        collectives = trained_with(recompute, "data:2;model:2").program.collectives()
        return collectives["allreduce", ("model",)][0]

    plain = reductions("none")
    assert reductions("layer") > plain
    assert reductions("attention") >= plain


REFUSED = [
    (lambda: stack([layer()], "pro"), "norm_position is 'pro'"),
    (lambda: stack([layer()], recompute="layers"), "did you mean layer"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def attended(dropout, training):
    def build(x, segments, positions):
        forward = FullForward(SequenceInfo(positions, segments), training)
        return {
            "y": SelfAttention(Heads(2, 4), causal=True, attention_dropout=dropout)(
                x, forward, "self"
            )
        }

    return run(build, INPUTS)["y"]


def test_dropout_changes_what_is_trained_with_only():
    whole = attended(0.0, training=True)
    np.testing.assert_array_equal(attended(0.5, training=False), whole)
    assert np.abs(attended(0.5, training=True) - whole).max() > 0.1


def test_a_state_too_short_for_what_is_given_is_refused():
    def build(x, segments, positions):
        forward = Prefill(SequenceInfo(positions), mtf.Dimension("length", 4), {})
        return {"y": SelfAttention(Heads(2, 4), causal=True)(x, forward, "self")}

    with pytest.raises(ValueError, match="6 tokens do not fit into the 4"):
        run(build, INPUTS)
