"""Image classifiers match their references in any layout.

`tests/huggingface/test_encoders.py` compares the ViT with `transformers`.
"""

import functools

import numpy as np
import pytest

from t2tp.mesh.layout import LayoutError
from tests.models import reference_images, small_images

BLOCKS = {"filter_sizes": [8, 4, 8], "layer_sizes": [1, 2], "norm_groups": 2}
# Name -> model, its set, changes of hparams, image size.
MODELS = {
    "mlp": ("mlp", "mlp_tiny", {"hidden_size": 32, "num_hidden_layers": 3}, (8, 8, 1)),
    "basic": ("mtf_resnet", "mtf_resnet_digits", BLOCKS, (8, 8, 2)),
    "bottleneck": (
        "mtf_resnet",
        "mtf_resnet_base_spatial",
        {**BLOCKS, "num_partitioned_stages": 1},
        (32, 32, 3),
    ),
    "group_norm": ("mtf_resnet", "mtf_resnet_digits", {**BLOCKS, "norm_type": "group"}, (8, 8, 2)),
    "vit_class": ("vit", "vit_tiny", {"pooling": "class", "num_hidden_layers": 2}, (8, 8, 3)),
    "vit_mean": ("vit", "vit_tiny", {"num_hidden_layers": 1}, (8, 16, 1)),
}
SPLIT = "batch:data;d_ff:model;heads:model;filters:model;height:rows;width:columns"


def make(name, **values):
    model, hparams_set, changes, size = MODELS[name]
    hparams = small_images.make_hparams(hparams_set, **{**changes, **values})
    if "dropout" in hparams.values():
        hparams.set("dropout", values.get("dropout", 0.0))
    hparams.set("label_smoothing", values.get("label_smoothing", 0.0))
    return model, hparams, small_images.make_batch(*size)


@functools.cache
def reference(name):
    model, hparams, batch = make(name)
    program = small_images.loss_program(model, hparams, batch)
    if model == "vit":
        return {n: x for n, x in program(batch).items() if n == "loss" or n.startswith("d_")}
    params = small_images.float64_params(program)
    logits_of = {"mlp": reference_images.mlp, "mtf_resnet": reference_images.resnet}[model]
    return reference_images.loss_and_gradients(logits_of, params, batch, hparams)


CASES = [
    ("mlp", "data:2;model:2"),
    ("basic", ""),
    ("basic", "rows:2;columns:2"),
    ("basic", "data:2;rows:2;model:2"),
    ("bottleneck", "data:2;rows:2;model:2"),
    ("group_norm", "columns:2;model:2"),
    ("vit_class", "data:4"),
    ("vit_class", "rows:2;model:2"),
    ("vit_mean", "data:2;rows:2;model:2"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh_shape"), CASES)
def test_any_layout_gives_the_loss_and_all_gradients_of_the_description(name, mesh_shape):
    model, hparams, batch = make(name)
    values = small_images.loss_program(model, hparams, batch, mesh_shape, SPLIT)(batch)
    wanted = reference(name)
    assert {key for key in values if key.startswith("d_")} == wanted.keys() - {"loss"}
    small_images.assert_close(values, wanted, 2e-5)


@pytest.mark.parametrize("name", ["mlp", "basic", "vit_mean"])
def test_evaluation_counts_the_images_that_have_weight(name):
    model, hparams, batch = make(name)
    values = small_images.loss_program(
        model, hparams, batch, "data:2;model:2", SPLIT, training=False
    )(batch)
    assert set(values) == {"loss", "nll", "tokens", "correct", "correct_top_5"}
    assert values["tokens"] == batch["weights"].sum()
    assert 0 <= values["correct"] <= values["correct_top_5"] <= values["tokens"]
    # Images without weight do not count, whatever their target.
    other = {**batch, "targets": np.where(batch["weights"] > 0, batch["targets"], 0)}
    again = small_images.loss_program(model, hparams, batch, training=False)(other)
    for key in values:
        assert float(again[key]) == pytest.approx(float(values[key]), rel=1e-5)


@pytest.mark.slow
def test_the_running_averages_move_in_training_and_serve_evaluation():
    """Trains on one batch until the averages are that batch's; evaluation then equals training."""
    model, hparams, batch = make("basic", norm_momentum=0.5)
    batch["weights"][:] = 1
    training = small_images.loss_program(model, hparams, batch, "data:2;rows:2", SPLIT)
    evaluation = small_images.loss_program(model, hparams, batch, training=False)
    before = float(evaluation(batch)["loss"])
    losses = [float(training(batch)["loss"]) for _ in range(30)]
    assert losses[0] == pytest.approx(losses[-1], rel=1e-5)
    averages = {v.spec.name: v.numpy() for v in training.variables if not v.spec.trainable}
    assert len(averages) == 2 * sum("norm_scale" in v.spec.name for v in training.variables)
    for variable in evaluation.variables:
        if variable.spec.name in averages:
            variable.slice_of(0).assign(averages[variable.spec.name])
    assert float(evaluation(batch)["loss"]) == pytest.approx(losses[-1], rel=1e-4)
    assert before != pytest.approx(losses[-1], rel=1e-3)


@pytest.mark.parametrize("name", ["mlp", "vit_mean"])
def test_dropout_is_the_same_on_any_mesh_and_off_in_evaluation(name):
    losses = []
    for mesh_shape in ("", "data:2;model:2"):
        program = small_images.loss_program(*make(name, dropout=0.3), mesh_shape, SPLIT)
        batch = make(name)[2]
        losses.append([float(program(batch, step=step)["loss"]) for step in range(2)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][0] != losses[0][1]
    model, hparams, batch = make(name, dropout=0.3)
    evaluated = small_images.loss_program(model, hparams, batch, training=False)(batch)["loss"]
    assert float(evaluated) == pytest.approx(float(reference(name)["loss"]), rel=1e-5)


def test_label_smoothing_is_in_the_loss_of_training_and_evaluation():
    model, hparams, batch = make("mlp", label_smoothing=0.1)
    plain = float(reference("mlp")["loss"])
    trained = small_images.loss_program(model, hparams, batch)(batch)
    evaluated = small_images.loss_program(model, hparams, batch, training=False)(batch)
    assert float(trained["loss"]) != pytest.approx(plain)
    assert float(evaluated["loss"]) == pytest.approx(float(trained["loss"]), rel=1e-5)
    assert float(evaluated["nll"] / evaluated["tokens"]) == pytest.approx(plain, rel=1e-5)


def test_seven_rows_are_not_split():
    """Each processor computes all of the last 7 rows, which the axis does not divide."""
    hparams = small_images.make_hparams(
        "mtf_resnet_50", layer_sizes=[1, 1, 1, 1], filter_sizes=[4] * 5
    )
    batch = small_images.make_batch(224, 224, 3)
    small_images.loss_program("mtf_resnet", hparams, batch, "rows:2;columns:2", training=False)
    hparams.num_partitioned_stages = 4
    with pytest.raises(LayoutError, match="does not divide dimension 'height' of size 7"):
        small_images.loss_program("mtf_resnet", hparams, batch, "rows:2", training=False)


REFUSED = [
    ("basic", {"filter_sizes": [8, 8]}, "must be one for the stem and one for each of the 2"),
    ("vit_mean", {"image_mean": [0.5, 0.5]}, "image_mean has 2 values, and images have 1"),
    ("vit_mean", {"patch_size": 3}, "patch_size 3 must divide the images' 8 rows and 16"),
]


@pytest.mark.parametrize(("name", "values", "message"), REFUSED)
def test_what_cannot_be_is_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        small_images.loss_program(*make(name, **values))
