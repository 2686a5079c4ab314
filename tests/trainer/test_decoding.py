from __future__ import annotations

import numpy as np
import pytest

from t2tp.trainer.decoding import draw, extend

LOGITS = np.log(np.array([0.5, 0.1, 0.25, 0.15], np.float32))


def drawn(temperature: float, top_k: int = 0, count: int = 4000) -> np.ndarray:
    """How often each token came."""
    generator = np.random.default_rng(0)
    tokens = [draw(LOGITS, generator, temperature, top_k) for _ in range(count)]
    return np.bincount(tokens, minlength=4) / count


def test_temperature_0_takes_the_most_probable_token():
    assert drawn(0.0, count=20)[0] == 1


def test_temperature_1_draws_as_the_model_says():
    np.testing.assert_allclose(drawn(1.0), np.exp(LOGITS), atol=0.03)


def test_a_low_temperature_sharpens():
    np.testing.assert_allclose(drawn(0.5), np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum(), atol=0.03)


def test_top_k_leaves_only_the_most_probable():
    np.testing.assert_allclose(drawn(1.0, top_k=2), [2 / 3, 0, 1 / 3, 0], atol=0.03)


@pytest.mark.parametrize("temperature", [1e-3, 1.0])
def test_huge_logits_are_no_trouble(temperature):
    logits = np.array([-1e4, 1e4], np.float32)
    assert draw(logits, np.random.default_rng(0), temperature) == 1


def test_a_continuation_ends_with_the_document_or_the_length():
    def count_down(tokens: list[int]) -> int:
        return tokens[-1] - 1

    assert extend([9], 3, count_down) == [8, 7, 6]
    assert extend([1, 5], 9, count_down) == [4, 3, 2]  # 1 ends a document.
    assert extend([9], 0, count_down) == []
