"""Losses and gradient norms per row equal the results of batches of one row."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.mesh.storage import Storage
from t2tp.optim import apply_gradients
from t2tp.optim.clipping import global_norm
from t2tp.optim.gradient_accumulation import variable_gradients
from t2tp.optim.loss import LossTerm
from t2tp.optim.per_row import RowsMixedError, row_losses_and_norms
from tests.models.any_model import small_model
from tests.models.small_transformers import FAMILIES, LAYOUTS, feature_of

# Family, changes, mesh and ZeRO stage.
CASES = {
    "dense": ("lm", {}, "one device", 0),
    "split": ("lm", {"norm_type": "rms"}, "both", 0),
    "at rest": ("lm", {}, "both", 2),
    "gathered": ("lm", {"recompute": "layer"}, "data", 3),
    "context": ("encdec", {"shared_embedding": False}, "context and both", 0),
    "classes": ("classes", {}, "data", 0),
    "masked": ("masked", {}, "tensor", 0),
    "mlp": ("mlp", {}, "data", 0),
    "patches": ("vit", {}, "data", 0),
    "convolutions": ("resnet", {"norm_type": "group", "norm_groups": 4}, "data", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rows_are_batches_of_one(case):
    family, changes, mesh, zero_stage = CASES[case]
    model, batch, features = small_model(family, **changes)
    mesh_shape, layout = LAYOUTS[mesh]
    dim = mtf.Dimension("batch", len(batch["targets"]))

    def rows(mesh, parts):
        loss = model.loss(mesh, parts, training=False).loss
        losses, norms = row_losses_and_norms(loss, dim, mesh)
        return {"loss": losses, "norm": norms}

    def row(mesh, parts):
        loss = model.loss(mesh, parts, training=False).loss
        return {"loss": loss, "norm": global_norm(variable_gradients(loss, mesh))}

    chosen = t2tp.Layout(mesh_shape, layout, Storage(zero_stage))
    together = t2tp.Program(rows, features, layout=chosen, seed=1)
    first = {
        name: t2tp.Feature(mtf.replace_dimensions(f.shape, dim, mtf.Dimension("batch", 1)), f.dtype)
        for name, f in features.items()
    }
    alone = t2tp.Program(row, first, seed=1)
    outputs = together(batch)
    rtol = 2e-6 if case == "convolutions" else 1e-6  # 1.4e-6 occurred: few elements per variance
    for i in range(dim.size):
        one = alone({name: x[i : i + 1] for name, x in batch.items()})
        for name in ("loss", "norm"):
            np.testing.assert_allclose(outputs[name][i], one[name], rtol, err_msg=f"row {i}")


def test_the_norm_of_one_row_is_the_steps_which_leaves_out_the_balance_of_experts():
    values = {"moe_gating": "top_k", "moe_balance_rate": 0.001}
    model, batch, _ = small_model("moe", **values)
    hparams = FAMILIES["moe"].hparams(**values)
    row = {name: x[:1] for name, x in batch.items()}

    def norms(mesh, parts):
        loss = model.loss(mesh, parts, training=False).loss
        _, norms = row_losses_and_norms(loss, mtf.Dimension("batch", 1), mesh)
        step = apply_gradients(loss, mesh, hparams, train_steps=1)["gradient_norm"]
        return {"row": norms, "step": step}

    found = t2tp.Program(norms, {name: feature_of(x) for name, x in row.items()}, seed=1)(row)
    np.testing.assert_allclose(found["row"], found["step"], 1e-6)


LOSSES = [
    lambda x: mtf.reduce_mean(mtf.square(x)),
    lambda x: LossTerm(mtf.reduce_sum(x), mtf.constant(x.mesh, 8.0)).mean(),
    lambda x: mtf.reduce_sum(x) + 1 / 4,
]


@pytest.mark.parametrize("loss_of", LOSSES)
def test_constants_that_may_have_the_number_of_rows_are_refused(loss_of):
    shape = mtf.Shape([mtf.Dimension("batch", 4), mtf.Dimension("o", 2)])

    def rows(mesh, parts):
        weight = mtf.get_variable(mesh, "w", shape[1:])
        return {"loss": row_losses_and_norms(loss_of(parts["x"] * weight), shape[0], mesh)[0]}

    with pytest.raises(RowsMixedError, match="number of rows"):
        t2tp.Program(rows, {"x": t2tp.Feature(shape, tf.float32)})


@pytest.mark.parametrize("family", ["moe", "moe_encdec"])
def test_experts_that_take_tokens_of_several_rows_are_refused(family):
    model, _, features = small_model(family)

    def rows(mesh, parts):
        loss = model.loss(mesh, parts, training=False).loss
        return {"loss": row_losses_and_norms(loss, mtf.Dimension("batch", 8), mesh)[0]}

    with pytest.raises(RowsMixedError, match="experts"):
        t2tp.Program(rows, features)
