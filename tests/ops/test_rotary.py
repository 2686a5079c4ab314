"""Rotary positions: pairs turned as complex numbers are."""

import math

import numpy as np

from t2tp.ops.rotary import RotaryScaling


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
