"""Experts match the blocks of `transformers` in values and gradients, on any mesh.

Both are computed in float64. Some cases send all tokens to a few experts.
"""

import functools

import numpy as np
import pytest

from t2tp import mtf
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import RoutingConfig
from t2tp.layers.mixture_of_experts import MixtureOfExperts
from t2tp.layout_check.double_program import DoubleProgram
from tests.cases import in_turn
from tests.huggingface import their_models
from tests.layers.running import run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BATCH, LENGTH, D_MODEL, EXPERTS, K, D_FF = 4, 4, 8, 4, 3, 6
# weights of the outputs in the loss
WEIGHTS = np.sin(np.arange(BATCH * LENGTH * D_MODEL, dtype=np.float32) + 1)
WEIGHTS = WEIGHTS.reshape(BATCH, LENGTH, D_MODEL)
TOP_K = functools.partial(RoutingConfig, gating="top_k", top_k=K)
GROUPED = {"router_groups": 4, "top_groups": 2}
# Type of the block -> its class, its config, and our routing, shared size and network.
BLOCKS = {
    "qwen3_moe": (
        "Qwen3MoeSparseMoeBlock",
        {"num_experts": EXPERTS, "moe_intermediate_size": D_FF, "norm_topk_prob": False},
        TOP_K(EXPERTS, normalize_gates=False),
        0,
        FeedForward("swiglu", D_FF),
    ),
    "deepseek_v3": (
        "DeepseekV3MoE",
        {
            "num_local_experts": 2 * EXPERTS,
            "moe_intermediate_size": D_FF,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
        },
        TOP_K(2 * EXPERTS, gate_scale=2.5, router_scores="sigmoid", is_balanced=True, **GROUPED),
        2 * D_FF,
        FeedForward("swiglu", D_FF),
    ),
    "gpt_oss": (
        "GptOssMLP",
        {"num_local_experts": EXPERTS, "intermediate_size": D_FF},
        TOP_K(EXPERTS, router_bias=True),
        0,
        FeedForward("clamped_swiglu", D_FF, use_bias=True),
    ),
}
LAYOUTS = [
    ("", ""),
    ("data:4", "batch:data;experts:data"),
    ("data:2;model:2", "batch:data;experts:data;d_ff:model"),
    ("expert:2;data:2", "batch:data+expert;experts:expert"),
    ("data:2;seq:2", "batch:data;length:seq;experts:data"),
    ("expert:4", "length:expert;experts:expert"),
]


def our_names(tensors):
    """Renames a block's parameters, or their gradients, to our variables."""
    ours = {}
    for name, value in tensors.items():
        kind = name.split(".")[-1]
        if "shared" in name:
            part = {"up_proj": "input", "gate_proj": "gate", "down_proj": "output"}
            ours[f"shared/{part[name.split('.')[-2]]}"] = value.T
        elif kind == "weight":
            ours["router"] = value.T
        elif kind == "bias":
            ours["router_bias"] = value
        elif kind == "e_score_correction_bias":
            ours["balance"] = value
        elif "gate_up" in kind:
            interleaved = value.shape[1] == D_MODEL or value.ndim == 2
            value = value if interleaved else np.moveaxis(value, 1, 2)
            gate, up = (
                (value[..., ::2], value[..., 1::2])
                if interleaved
                else (value[..., :D_FF], value[..., D_FF:])
            )
            suffix = "_bias" if value.ndim == 2 else ""
            ours |= {f"gate{suffix}": gate, f"input{suffix}": up}
        elif kind == "down_proj_bias":
            ours["output_bias"] = value
        else:
            ours["output"] = value if value.shape[1] == D_FF else np.moveaxis(value, 1, 2)
    return ours


@functools.cache
def theirs(name, skewed=0):
    """Returns the block's parameters, input, output and gradients."""
    block_name, options, *_ = BLOCKS[name]
    module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=[block_name])
    options = {"hidden_size": D_MODEL, "num_experts_per_tok": skewed or K, **options}
    config = transformers.AutoConfig.for_model(name, **options)
    config._experts_implementation = "eager"  # The other implementations do not support float64.
    made = getattr(module, block_name)(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    for tensor in tensors.values():
        tensor.data.normal_(0, 0.5, generator=generator)
    if skewed:  # All tokens choose the first `skewed` experts.
        first = torch.arange(EXPERTS) < skewed
        tensors["router.bias"].data = torch.where(first, 100.0, -100.0)
    x = torch.normal(0, 1, (BATCH, LENGTH, D_MODEL), generator=generator, requires_grad=True)
    made, x = made.double(), x.detach().double().requires_grad_()
    with their_models.float64():
        y = made(x)
    y = y[0] if isinstance(y, tuple) else y
    (y * torch.tensor(WEIGHTS)).sum().backward()
    grads = {n: p.grad.numpy() for n, p in made.named_parameters()}
    values = our_names({n: t.detach().numpy() for n, t in tensors.items()})
    wanted = {"y": y.detach().numpy(), "d_x": x.grad.numpy()}
    return values, x.detach().numpy(), wanted | {f"d_{n}": g for n, g in our_names(grads).items()}


def ours(name, dispatch, mesh_shape, layout, skewed=0):
    values, x, _ = theirs(name, skewed)
    _, _, routing, shared_d_ff, network = BLOCKS[name]
    changes = {**vars(routing), "dispatch": dispatch, "capacity_factor_train": float(EXPERTS)}
    changes["top_k"] = skewed or K
    experts = MixtureOfExperts(RoutingConfig(**changes), network, shared_d_ff)

    def build(x):
        y, sums = experts(x, True)
        loss = mtf.reduce_sum(y * mtf.import_tf_tensor(x.mesh, WEIGHTS, shape=y.shape))
        learned = [v for v in x.graph.trainable_variables if v.name != "balance"]
        grads = mtf.gradients([loss], [x, *(v.value for v in learned)])
        named = zip(["x", *(v.name for v in learned)], grads, strict=True)
        return {"y": y, "dropped": mtf.reduce_sum(sums.dropped)} | {f"d_{n}": g for n, g in named}

    inputs = {"x": (f"batch:{BATCH};length:{LENGTH};d_model:{D_MODEL}", x)}
    return run(
        build,
        inputs,
        mesh_shape,
        layout,
        lambda n, value: values[n].reshape(value.shape),
        DoubleProgram,
    )


def assert_equal(got, wanted):
    assert got.pop("dropped") == 0
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("mesh_shape", "layout", "name"), in_turn(LAYOUTS, BLOCKS, times=1))
def test_dropless_experts_equal_the_block_on_any_mesh(mesh_shape, layout, name):
    assert_equal(ours(name, "dropless", mesh_shape, layout), theirs(name)[2])


@pytest.mark.parametrize("name", BLOCKS)
def test_with_room_for_all_tokens_capacity_does_too(name):
    assert_equal(ours(name, "capacity", *LAYOUTS[1]), theirs(name)[2])


@pytest.mark.parametrize(("layout", "number"), [(LAYOUTS[0], 1), (LAYOUTS[1], 1), (LAYOUTS[3], K)])
def test_no_token_is_lost_where_all_choose_the_same_experts(layout, number):
    wanted = theirs("gpt_oss", number)[2]
    assert_equal(ours("gpt_oss", "dropless", *layout, skewed=number), wanted)
