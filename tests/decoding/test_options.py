"""Options of decoding, and when XLA compiles it."""

import math

import pytest

from t2tp.decoding import DecodeOptions
from t2tp.decoding.options import should_compile
from t2tp.mesh.layout import Layout


def test_text_is_read():
    options = DecodeOptions.parse("beam_size=2, alpha=0.8,extra_length=50,return_beams=true")
    assert options == DecodeOptions(beam_size=2, alpha=0.8, extra_length=50, return_beams=True)
    assert DecodeOptions.parse("", batch_size=3).batch_size == 3
    assert DecodeOptions.parse("batch_size=5", batch_size=3).batch_size == 5


CASES = [
    ("", "beam", 4),
    ("beam_size=1", "greedy", 1),
    ("temperature=0", "greedy", 1),
    ("beam_size=7", "beam", 7),
    ("temperature=0.5", "sample", 1),
    ("top_k=5", "sample", 1),
    ("top_p=0.5,beam_size=1", "sample", 1),
]


@pytest.mark.parametrize(("text", "method", "width"), CASES)
def test_the_method_follows_from_what_is_given(text, method, width):
    options = DecodeOptions.parse(text)
    assert (options.method, options.width) == (method, width)


REFUSED = [
    ("beam=4", "beam_size"),
    ("beam_size=0", "at least 1"),
    ("beam_size=2000", "at most 1,024"),
    ("batch_size=1000000", "at most 65,536"),
    ("beam_size=4,temperature=0.5", "one or the other"),
    ("beam_size=2,top_k=3", "one or the other"),
    ("temperature=0,top_k=3", "temperature=0"),
    ("top_p=0", "above 0"),
    ("top_p=1.5", "at most 1"),
    ("alpha=-1", "at least 0"),
    ("temperature=1,return_beams=true", "sample"),
    ("eos_id=-2", "eos_id is -2"),
    ("eos_id=[3,end]", "eos_id"),
    ("beam_size=many", "many"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(ValueError, match=said) as error:
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
