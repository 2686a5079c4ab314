"""Rotary positions: pairs turned as complex numbers are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.ops.rotary import RotaryScaling, rotary
from tests.ops.on_mesh import assert_close, in_float64, with_gradients

BASE = 100.0
MESHES = [("", ""), ("a:2;b:2", "batch:a;heads:b"), ("a:2", "length:a")]


def inputs(with_length=True):
    generator = np.random.default_rng(0)
    places, sizes = ("length:6;", [6]) if with_length else ("", [])
    return {
        "x": (f"batch:4;heads:2;{places}d_kv:8", generator.normal(size=[4, 2, *sizes, 8])),
        "positions": (f"batch:4;{places}"[:-1], generator.integers(0, 50, [4, *sizes])),
    }


def composed(x, positions):
    """Elements i and i + 4 are the parts of a complex number, multiplied by exp(i * angle)."""
    turns = tf.constant(BASE ** (-2 * np.arange(4) / 8))
    angle = tf.cast(positions, tf.float64)[:, None, ..., None] * turns
    z = tf.complex(x[..., :4], x[..., 4:]) * tf.exp(tf.complex(tf.zeros_like(angle), angle))
    return tf.concat([tf.math.real(z), tf.math.imag(z)], -1)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
@pytest.mark.parametrize("with_length", [True, False])
def test_it_and_its_gradient_are_those_of_complex_numbers(mesh_shape, layout, with_length):
    given = inputs(with_length)
    if not with_length and "length" in layout:
        pytest.skip("no length")
    got = with_gradients(lambda x, positions: rotary(x, positions, BASE), given, mesh_shape, layout)
    assert_close(got, in_float64(composed, given), 2e-6)


def llama_3_1(turns):
    """The published description, pair by pair (Llama 3.1's reference code), for a factor of 8."""
    slowed = []
    for turn in turns:
        wavelength = 2 * math.pi / turn
        if wavelength < 8192 / 4:
            slowed.append(turn)
        elif wavelength > 8192 / 1:
            slowed.append(turn / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            slowed.append((1 - smooth) * turn / 8 + smooth * turn)
    return np.array(slowed)


def test_scaled_pairs_are_those_of_llama():
    turns = 500_000.0 ** (-np.arange(64) / 64)
    scaled = RotaryScaling(8.0)(turns)
    np.testing.assert_allclose(scaled, llama_3_1(turns), rtol=1e-12)
    kinds = {"kept": scaled == turns, "slowed": np.isclose(scaled, turns / 8)}
    assert [int(kind.sum()) for kind in kinds.values()] == [29, 29]  # and 6 between the two


def test_scaling_is_of_the_angles():
    scaling = RotaryScaling(8.0, original_length=100)
    given = inputs()
    features = {
        "x": t2tp.Feature(given["x"][0]),
        "positions": t2tp.Feature(given["positions"][0], tf.int32),
    }
    program = t2tp.Program(lambda mesh, f: {"y": rotary(**f, base=BASE, scaling=scaling)}, features)
    x, positions = (given[name][1] for name in ("x", "positions"))
    turns = scaling(BASE ** (-np.arange(4) / 4))
    z = x[..., :4] + 1j * x[..., 4:]
    z *= np.exp(1j * positions[:, None, :, None] * turns)
    wanted = np.concatenate([z.real, z.imag], -1)
    np.testing.assert_allclose(program({"x": x, "positions": positions})["y"], wanted, atol=2e-5)


def test_scaling_in_the_wrong_order_is_refused():
    with pytest.raises(ValueError, match="rotary_low_freq_factor is 4, and must be below"):
        RotaryScaling(8.0, low_freq_factor=4, high_freq_factor=4)


def test_products_depend_on_how_far_apart_places_are():
    vectors = np.random.default_rng(1).normal(size=[2, 8]).astype(np.float32)

    def product(*places):
        given = {"x": t2tp.Feature("row:2;d_kv:8"), "positions": t2tp.Feature("row:2", tf.int32)}
        program = t2tp.Program(lambda mesh, f: {"y": rotary(**f)}, given)
        one, other = program({"x": vectors, "positions": np.array(places)})["y"]
        return one @ other

    assert product(3, 7) == pytest.approx(product(13, 17), rel=1e-5)
    assert product(3, 7) != pytest.approx(product(3, 8), rel=1e-3)


@pytest.mark.parametrize(
    ("x", "positions", "message"),
    [("batch:4;d_kv:7", "batch:4", "must be even"), ("batch:4;d_kv:8", "row:4", "are among")],
)
def test_what_does_not_fit_is_refused(x, positions, message):
    given = {"x": t2tp.Feature(x), "positions": t2tp.Feature(positions, tf.int32)}
    with pytest.raises(ValueError, match=message):
        t2tp.Program(lambda mesh, f: {"y": rotary(**f)}, given)


def test_pairs_cannot_be_split():
    given = {"x": t2tp.Feature("batch:4;d_kv:8"), "positions": t2tp.Feature("batch:4", tf.int32)}
    with pytest.raises(t2tp.mesh.layout.LayoutError, match="d_kv"):
        t2tp.Program(lambda mesh, f: {"y": rotary(**f)}, given, mesh_shape="a:2", layout="d_kv:a")
