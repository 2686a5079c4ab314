"""Options of decoding, and when XLA compiles it."""

import math

import pytest

from t2tp.decoding import DecodeOptions
from t2tp.decoding.options import should_compile
from t2tp.mesh.layout import Layout
from tests.cases import mistakes


def test_text_is_read():
    options = DecodeOptions.parse("beam_size=2, alpha=0.8,extra_length=50,return_beams=true")
    assert options == DecodeOptions(beam_size=2, alpha=0.8, extra_length=50, return_beams=True)
    assert DecodeOptions.parse("", batch_size=3).batch_size == 3
    assert DecodeOptions.parse("batch_size=5", batch_size=3).batch_size == 5


CASES = [
    ("", "beam", 4, "beam4.alpha0.6"),
    ("beam_size=1", "greedy", 1, "greedy"),
    ("temperature=0", "greedy", 1, "greedy"),
    ("beam_size=7", "beam", 7, "beam7.alpha0.6"),
    ("temperature=0.5", "sample", 1, "temperature0.5"),
    ("top_k=5", "sample", 1, "temperature1.top_k5"),
    ("top_p=0.5,beam_size=1,min_p=0.1", "sample", 1, "temperature1.top_p0.5.min_p0.1"),
]


@pytest.mark.parametrize(("text", "method", "width", "label"), CASES)
def test_the_method_follows_from_what_is_given(text, method, width, label):
    options = DecodeOptions.parse(text)
    assert (options.method, options.width, options.label) == (method, width, label)


@mistakes("decode_hparams")
def test_what_cannot_be_meant_is_refused(text, says):
    with pytest.raises(ValueError, match=says) as error:
        DecodeOptions.parse(text)
    assert str(error.value).startswith("decode_hparams: ")


BATCH_SIZE = 2


COMPILED = [
    ("", 16, 1_000_000, True),
    ("", 15, 1_000_000, False),
    ("", math.inf, 1_000_000, True),
    ("", 16, 124_000_000, False),  # matmuls dominate
    ("data:2;model:2", 64, 1_000_000, False),
]


@pytest.mark.parametrize(("mesh_shape", "num_prompts", "num_weights", "expected"), COMPILED)
def test_much_is_decoded_compiled(mesh_shape, num_prompts, num_weights, expected):
    layout = Layout(mesh_shape, "batch:data;heads:model")
    assert should_compile(layout, num_prompts, BATCH_SIZE, num_weights) == expected
