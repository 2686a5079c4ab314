"""Experts match a loop over the tokens, on any mesh."""

import math

import numpy as np
import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
from t2tp import mtf, registry
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.mixture_of_experts import MixtureOfExperts
from t2tp.optim import train_step
from t2tp.optim.loss import LossOutput, LossTerm
from tests.cases import in_turn
from tests.layers.running import run

BATCH, LENGTH, D_MODEL, EXPERTS, D_FF = 8, 6, 8, 4, 12
SHARED_AXIS = ("data:4", "batch:data;experts:data")
# The experts' axis also splits the length, so a row has several groups.
OWN_AXIS = (
    "data:2;expert:2",
    "batch:data;length:expert;length_groups:expert;experts:expert;expert_groups:data",
)
LAYOUTS = [
    ("", ""),
    SHARED_AXIS,
    ("data:2;model:2", "batch:data;experts:data;d_ff:model"),
    ("expert:4", "experts:expert"),
    ("data:2;expert:2", "batch:data;experts:expert;expert_groups:data"),
    ("data:2;expert:2;model:2", "batch:data;experts:expert;expert_groups:data;d_ff:model"),
    ("data:2;model:2", "batch:data;experts:data;d_model:model"),
    ("expert:2", "length:expert;length_groups:expert;experts:expert"),
    OWN_AXIS,
    (
        "data:2;seq:2",
        "batch:data;length:seq;length_groups:seq;experts:data;expert_length_groups:seq",
    ),
]
ROUTINGS = {
    "switch": RoutingConfig(EXPERTS, "top_1", 1.0, 4.0),
    "gshard": RoutingConfig(EXPERTS, "top_2", 0.75, 4.0),
    "expert_choice": RoutingConfig(EXPERTS, "expert_choice", 0.6, 4.0),
    "small_groups": RoutingConfig(EXPERTS, "top_1", 1.0, 4.0, group_size=3),
    "large_groups": RoutingConfig(EXPERTS, "top_2", 0.75, 4.0, group_size=12),
    "top_3": RoutingConfig(
        EXPERTS, "top_k", 0.75, 4.0, top_k=3, router_scores="sigmoid", gate_scale=2.5
    ),
    "small_groups_choose": RoutingConfig(EXPERTS, "expert_choice", 0.6, 4.0, group_size=3),
}


def inputs():
    generator = np.random.default_rng(0)
    token_mask = np.arange(LENGTH)[None] < np.array([6, 6, 5, 3, 1, 0, 6, 6])[:, None]
    return {
        "x": (
            f"batch:{BATCH};length:{LENGTH};d_model:{D_MODEL}",
            generator.normal(size=[BATCH, LENGTH, D_MODEL]),
        ),
        "token_mask": (f"batch:{BATCH};length:{LENGTH}", token_mask.astype(int)),
    }


def layer(routing, training=True, mlp="relu"):
    def build(x, token_mask):
        experts = MixtureOfExperts(routing, FeedForward(mlp, D_FF))
        y, sums = experts(x, training, mtf.not_equal(token_mask, 0))
        return {"y": y} | {name: mtf.reduce_sum(x) for name, x in sums._asdict().items()}

    return build


def apply(variables, expert, token):
    hidden = np.maximum(token @ variables["input"][expert], 0)
    return hidden @ variables["output"][expert]


def loop(routing, variables, training=True):
    """Computes the experts group by group and token by token."""
    x, token_mask = (array for _, array in inputs().values())
    size = routing.group_size or LENGTH
    tokens, real = x.reshape(-1, size, D_MODEL), token_mask.reshape(-1, size)
    y = np.zeros_like(tokens)
    sums = dict.fromkeys(("load_balance", "router_z", "choices", "dropped"), 0.0)
    factor = routing.capacity_factor_train if training else routing.capacity_factor_eval
    for group, (vectors, is_token) in enumerate(zip(tokens, real, strict=True)):
        logits = vectors @ variables["router"]
        z = np.log(np.exp(logits).sum(-1))
        p = np.exp(logits - z[:, None]) * is_token[:, None]
        if routing.router_scores == "sigmoid":
            p = is_token[:, None] / (1 + np.exp(-logits))
        sums["router_z"] += (z**2 * is_token).sum()
        fill = fill_by_expert if routing.gating == "expert_choice" else fill_by_token
        fill(routing, variables, vectors, is_token, p, factor, y[group], sums)
    return {"y": y.reshape(x.shape), **sums}


def fill_by_token(routing, variables, vectors, is_token, p, factor, y, sums):
    k = routing.choices
    capacity = max(1, min(len(p), math.ceil(len(p) * k * factor / EXPERTS)))
    order = np.argsort(-p, axis=-1, kind="stable")
    used = np.zeros(EXPERTS, int)
    for choice in range(k):
        for t in np.flatnonzero(is_token):
            expert = order[t, choice]
            gate = p[t, expert] / (p[t, order[t, :k]].sum() if k > 1 else 1)
            if used[expert] < capacity:
                y[t] += routing.gate_scale * gate * apply(variables, expert, vectors[t])
            else:
                sums["dropped"] += 1
            used[expert] += 1
            sums["choices"] += 1
    count = max(is_token.sum(), 1)
    counted = order[is_token == 1, : k if routing.gating == "top_k" else 1]
    share = np.bincount(counted.ravel(), minlength=EXPERTS) / count
    if routing.router_scores == "sigmoid":
        p = p / np.maximum(p.sum(-1, keepdims=True), 1e-9)
    sums["load_balance"] += EXPERTS * (share * p.sum(0)).sum()


def fill_by_expert(routing, variables, vectors, is_token, p, factor, y, sums):
    capacity = max(1, min(len(p), math.ceil(len(p) * factor / EXPERTS)))
    has_expert = np.zeros(len(p), bool)
    for expert in range(EXPERTS):
        for t in np.argsort(-p[:, expert], kind="stable")[:capacity]:
            y[t] += p[t, expert] * apply(variables, expert, vectors[t])
            has_expert[t] |= p[t, expert] > 0
    sums["choices"] += is_token.sum()
    sums["dropped"] += (is_token * ~has_expert).sum()


def assert_same(got, wanted):
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


TRAINED = [(*case, True) for case in in_turn(LAYOUTS, ROUTINGS, times=2)]
EVALUATED = [("", "", name, False) for name in ROUTINGS]


@pytest.mark.parametrize(("mesh_shape", "layout", "name", "training"), TRAINED + EVALUATED)
def test_in_any_layout_it_is_a_loop_over_the_tokens(mesh_shape, layout, name, training):
    ran = run(layer(ROUTINGS[name], training), inputs(), mesh_shape, layout)
    wanted = loop(ROUTINGS[name], ran.variables, training)
    assert_same(ran, wanted)
    assert training is bool(wanted["dropped"])


JOINT_AXES = ("data:2;expert:2", "batch:data+expert;experts:expert")
ALL_TO_ALLS = [(name, SHARED_AXIS, "data") for name in ("switch", "gshard", "expert_choice")] + [
    ("small_groups", OWN_AXIS, "expert"),
    ("small_groups_choose", OWN_AXIS, "expert"),
    ("switch", JOINT_AXES, "expert"),
]


@pytest.mark.parametrize(("name", "layout", "axis"), ALL_TO_ALLS)
def test_tokens_go_to_experts_by_one_all_to_all_and_back_by_another(name, layout, axis):
    """Each all-to-all moves all slots of a processor: [groups / 4, experts, capacity, d_model].

    The backward pass has two more all-to-alls of the same size.
    """
    routing = ROUTINGS[name]

    def build(x, token_mask):
        y, _ = MixtureOfExperts(routing, FeedForward("relu", D_FF))(x, True)
        return {"y": y, "d_x": mtf.gradients([y], [x])[0]}

    program = run(build, inputs(), *layout).program
    tokens = routing.group_size or LENGTH
    groups = BATCH * LENGTH // tokens
    size = groups // 4 * EXPERTS * routing.capacity(tokens, training=True) * D_MODEL * 4
    assert program.collectives() == {("alltoall", (axis,)): (4, 4 * size)}


def test_gates_reach_the_router():
    def build(x, token_mask):
        y, sums = MixtureOfExperts(ROUTINGS["switch"], FeedForward("relu", D_FF))(x, True)
        (router,) = [v for v in x.graph.trainable_variables if v.name == "router"]
        outputs = {"y": mtf.reduce_sum(y), "balance": sums.load_balance, "z": sums.router_z}
        return {name: mtf.gradients([loss], [router.value])[0] for name, loss in outputs.items()}

    for gradient in run(build, inputs()).values():
        assert np.abs(gradient).max() > 1e-3


SPLIT_TOKENS = [LAYOUTS[0], ("data:4", "batch:data"), ("data:2;model:2", "batch:data;length:model")]


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("layout", SPLIT_TOKENS)
@pytest.mark.parametrize("excess", [0, 1])
def test_the_balance_moves_against_the_load_and_stays_at_an_equal_load(
    excess, layout, microbatches
):
    """96 tokens make 1 / 96 of each token's loss, which has no exact float."""
    hparams = registry.hparams("transformer_moe_tiny")
    hparams.moe_balance_rate, hparams.microbatches = 0.5, microbatches
    hparams.activation_dtype = "float16"  # The loss is scaled.
    routing = RoutingConfig(D_MODEL, "top_1", is_balanced=True, dispatch="dropless")
    expert = np.arange(96) % D_MODEL
    expert[:excess] = 5  # Instead of 0.

    def build(x):
        def loss(part):
            y, sums = MixtureOfExperts(routing, FeedForward("relu", D_FF))(part["x"], True)
            total = mtf.reduce_sum(y) + mtf.reduce_sum(sums.choices)
            return LossOutput({"all": LossTerm(total, mtf.reduce_sum(mtf.abs(part["x"])))})

        return {"loss": train_step(loss, {"x": x}, x.mesh, hparams, 10).loss}

    ran = run(
        build,
        {"x": (f"batch:12;length:8;d_model:{D_MODEL}", np.eye(D_MODEL)[expert].reshape(12, 8, -1))},
        *layout,
        lambda name, value: np.eye(D_MODEL) if name == "router" else value,
    )
    load = np.bincount(expert, minlength=D_MODEL)
    np.testing.assert_array_equal(ran.variables["balance"], -0.5 * np.sign(load - 12))


def test_decoding_turns_nobody_away():
    routing = RoutingConfig(EXPERTS, "top_1", 0.25, 0.25)

    def build(x, token_mask):
        experts = MixtureOfExperts(routing, FeedForward("relu", D_FF))
        whole = experts.decode(x)
        first = mtf.gather(x, mtf.constant(x.mesh, 0, dtype=tf.int32), x.shape.dims[1])
        return {"whole": whole, "one": experts.decode(first), "cut": experts(x, False)[0]}

    ran = run(build, inputs(), "data:4", "batch:data;experts:data")
    everything = {name: (shape, array) for name, (shape, array) in inputs().items()}
    tokens = everything["x"][1]
    p = tokens @ ran.variables["router"]
    p = np.exp(p) / np.exp(p).sum(-1, keepdims=True)
    best = p.argmax(-1)
    wanted = np.array(
        [
            [p[b, t, best[b, t]] * apply(ran.variables, best[b, t], tokens[b, t]) for t in range(6)]
            for b in range(BATCH)
        ]
    )
    np.testing.assert_allclose(ran["whole"], wanted, atol=1e-5)
    np.testing.assert_allclose(ran["one"], wanted[:, 0], atol=1e-5)
    assert (ran["cut"] == 0).all(-1).any()


REFUSED = [
    (RoutingConfig(4, "top_3"), "did you mean top_"),
    (RoutingConfig(1, "top_2"), "top_2 chooses 2 .* num_experts=1"),
    (RoutingConfig(4, "expert_choice", dispatch="dropless"), "supports neither"),
    (RoutingConfig(4, group_size=-1), "moe_group_size is -1"),
    (RoutingConfig(4, capacity_factor_train=0.0), "above 0"),
    (RoutingConfig(4, top_groups=2), "moe_top_groups=2"),
]


@pytest.mark.parametrize(("routing", "message"), REFUSED)
def test_what_cannot_work_is_refused(routing, message):
    with pytest.raises(ValueError, match=message):
        MixtureOfExperts(routing, FeedForward("relu", 8))


def test_experts_that_choose_do_not_decode():
    def build(x, token_mask):
        return {"y": MixtureOfExperts(ROUTINGS["expert_choice"], FeedForward("relu", 8)).decode(x)}

    with pytest.raises(ValueError, match="use top_1"):
        t2tp.Program(
            lambda mesh, given: build(given["x"], None), {"x": t2tp.Feature(inputs()["x"][0])}
        )
