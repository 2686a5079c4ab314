"""Dimensions of one name that disagree in size are refused, naming both tensors."""

from __future__ import annotations

import numpy as np
import pytest

import t2tp
from t2tp import mtf

FEATURES = {
    "x": t2tp.Feature("batch:2;d_model:4"),
    "w": t2tp.Feature("d_model:5;d_ff:3"),
    "fits": t2tp.Feature("d_model:4;d_ff:3"),
}
BOTH = (
    r"dimension 'd_model' has size 4 in 'x' \[batch=2, d_model=4\] and size 5 in 'w'"
    r" \[d_model=5, d_ff=3\]"
)
OUTPUT = mtf.convert_to_shape("batch:2;d_ff:3")


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x, w: mtf.einsum([x, w]), "einsum"),
        (lambda x, w: mtf.einsum([x, w], output_shape=OUTPUT), "einsum"),
        (lambda x, w: mtf.einsum([x, w], reduced_dims=[x.shape.dims[1]]), "einsum"),
        (lambda x, w: mtf.matmul(x, w, output_shape=OUTPUT), "einsum"),
        (mtf.add, "add"),
        (mtf.multiply, "multiply"),
    ],
)
def test_two_sizes_are_refused_with_both_tensors(operation, name):
    with pytest.raises(ValueError, match=f"^{name}: {BOTH}"):
        t2tp.Program(lambda mesh, given: {"y": operation(given["x"], given["w"])}, FEATURES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"output_shape": "batch:2;d_ff:4"},
            "'d_ff' has size 4 in output_shape, and size 3 in 'fits'",
        ),
        (
            {"reduced_dims": [mtf.Dimension("d_model", 5)]},
            "'d_model' has size 5 in reduced_dims, and size 4 in 'x'",
        ),
    ],
)
def test_two_sizes_in_the_arguments_are_refused(arguments, said):
    if "output_shape" in arguments:
        arguments = {"output_shape": mtf.convert_to_shape(arguments["output_shape"])}
    with pytest.raises(ValueError, match=said):
        t2tp.Program(
            lambda mesh, given: {"y": mtf.einsum([given["x"], given["fits"]], **arguments)},
            FEATURES,
        )


def test_layers_take_their_products_from_here():
    """mesh-tensorflow's dense layer, told of a dimension that the input has in another size."""
    reduced, d_ff = mtf.Dimension("d_model", 5), mtf.Dimension("d_ff", 3)
    with pytest.raises(ValueError, match="einsum: dimension 'd_model' has size"):
        t2tp.Program(
            lambda mesh, given: {
                "y": mtf.layers.dense(given["x"], reduced_dims=[reduced], new_dims=[d_ff])
            },
            FEATURES,
        )


def test_weights_may_have_a_dimension_twice_in_two_sizes():
    """From `channels` to `channels`, which is how layers are often written."""
    features = {
        "x": t2tp.Feature("batch:2;channels:4"),
        "w": t2tp.Feature("channels:4;channels:3"),
    }
    output = mtf.convert_to_shape("batch:2;channels:3")
    program = t2tp.Program(
        lambda mesh, given: {"y": mtf.einsum([given["x"], given["w"]], output_shape=output)},
        features,
    )
    y = program({"x": np.ones([2, 4]), "w": np.ones([4, 3])})["y"]
    np.testing.assert_array_equal(y, np.full([2, 3], 4.0))


def test_what_agrees_is_computed():
    program = t2tp.Program(
        lambda mesh, given: {
            "product": mtf.einsum([given["x"], given["fits"]], output_shape=OUTPUT),
            "reduced": mtf.einsum([given["x"]], reduced_dims=[given["x"].shape.dims[1]]),
            "sum": mtf.add(given["x"], mtf.multiply(given["x"], 2.0)),
        },
        FEATURES,
    )
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=f.shape.to_integer_list).astype(np.float32)
        for name, f in FEATURES.items()
    }
    y = program(arrays)
    np.testing.assert_allclose(y["product"], arrays["x"] @ arrays["fits"], rtol=1e-5)
    np.testing.assert_allclose(y["reduced"], arrays["x"].sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(y["sum"], 3 * arrays["x"], rtol=1e-5)
