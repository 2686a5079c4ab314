"""Distillation equals PyTorch by hand, on any layout, chunk by chunk."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.ops.cross_entropy.projected import Teacher, projected_cross_entropy

BATCH, LENGTH, VOCAB, TOKENS = 4, 8, 24, 21
SHAPES = {
    "x": f"batch:{BATCH};length:{LENGTH};d_model:6",
    "table": f"vocab:{VOCAB};d_model:6",
    "bias": f"vocab:{VOCAB}",
    "taught_x": f"batch:{BATCH};length:{LENGTH};d_model:10",
    "taught_table": f"vocab:{VOCAB};d_model:10",
    "weights": f"batch:{BATCH};length:{LENGTH}",
}
CASES = {
    "one device": ("", "", {}),
    "chunks": ("", "", {"chunk": 5}),
    "vocabulary": ("data:2;model:4", "batch:data;vocab:model", {"chunk": 3}),
    "width": ("seq:2;model:2", "length:seq;d_model:model", {"chunk": -1}),
    "cap and smoothing": ("data:2", "batch:data", {"soft_cap": 3.0, "label_smoothing": 0.1}),
}


def arrays():
    draw = np.random.default_rng(0)
    values = {
        name: draw.normal(0, 1, t2tp.Feature(shape).shape.to_integer_list).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    values["targets"] = draw.integers(0, TOKENS, [BATCH, LENGTH]).astype(np.int32)
    values["weights"] = (values["weights"] > 0).astype(np.float32)
    return values


def by_torch(values, weight, temperature, soft_cap=0.0, label_smoothing=0.0):
    """Returns the loss sum, the sum of negative log-likelihoods, and the gradients."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[hf-tests]'")
    given = {name: torch.tensor(value) for name, value in values.items()}
    learned = [given[name].requires_grad_() for name in ("x", "table", "bias")]
    logits = given["x"] @ given["table"].T + given["bias"]
    taught = given["taught_x"] @ given["taught_table"].T
    if soft_cap:
        logits = torch.tanh(logits / soft_cap) * soft_cap
    log_probs = torch.log_softmax(logits, -1)
    nll = -log_probs.gather(-1, given["targets"].long()[..., None])[..., 0]
    label = nll
    if label_smoothing:
        others = label_smoothing / (VOCAB - 1)
        label = (1 - label_smoothing - others) * nll - others * log_probs.sum(-1)
        entropy = -(1 - label_smoothing) * np.log(1 - label_smoothing)
        label = label - (entropy - label_smoothing * np.log(others))
    kl = torch.nn.functional.kl_div(
        torch.log_softmax(logits[..., :TOKENS] / temperature, -1),
        torch.log_softmax(taught[..., :TOKENS] / temperature, -1),
        reduction="none",
        log_target=True,
    ).sum(-1)
    loss = ((1 - weight) * label + weight * temperature**2 * kl) * given["weights"]
    loss.sum().backward()
    sums = loss.sum().item(), (nll * given["weights"]).sum().item()
    return sums, [each.grad.numpy() for each in learned]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_torch(case, temperature):
    mesh_shape, layout, options = CASES[case]
    values = arrays()

    def step_fn(mesh, features):
        teacher = Teacher(
            features["taught_x"], features["taught_table"], None, 0.0, 0.4, temperature, TOKENS
        )
        x, table, bias = (features[name] for name in ("x", "table", "bias"))
        arguments = x, table, features["targets"], features["weights"], bias
        chunk = {"chunk": BATCH * LENGTH} if options.get("chunk") == -1 else {}
        loss, nll = projected_cross_entropy(*arguments, teacher=teacher, **{**options, **chunk})
        gradients = mtf.gradients([loss], [x, table, bias])
        named = dict(zip(("d_x", "d_table", "d_bias"), gradients, strict=True))
        return {"loss": loss, "nll": nll, **named}

    features = {name: t2tp.Feature(shape) for name, shape in SHAPES.items()}
    features["targets"] = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    program = t2tp.Program(step_fn, features, mesh_shape=mesh_shape, layout=layout)
    outputs = program(values)
    known = {name: options[name] for name in ("soft_cap", "label_smoothing") if name in options}
    sums, gradients = by_torch(values, 0.4, temperature, **known)
    assert [float(outputs[name]) for name in ("loss", "nll")] == pytest.approx(sums, rel=1e-5)
    for name, wanted in zip(("d_x", "d_table", "d_bias"), gradients, strict=True):
        np.testing.assert_allclose(np.asarray(outputs[name]), wanted, rtol=1e-4, atol=1e-5)


def test_the_cost_includes_the_teachers_matmul():
    costs = []

    def step_fn(mesh, features):
        given = [features[name] for name in ("x", "table", "targets", "weights")]
        taught = features["taught_x"], features["taught_table"]
        for teacher in (None, Teacher(*taught, None, 0.0, 0.4, 1.0, TOKENS)):
            op = projected_cross_entropy(*given, teacher=teacher)[0].operation
            costs.append((op.matmul_flops, 2 * np.prod(op.product_sizes(mesh.layout))))
        return {}

    features = {name: t2tp.Feature(shape) for name, shape in SHAPES.items()}
    features["targets"] = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    t2tp.Program(step_fn, features).trace()
    alone, taught = (2 * BATCH * LENGTH * VOCAB * d_model for d_model in (6, 6 + 10))
    assert costs[:2] == [(alone, alone), (taught, taught)]
