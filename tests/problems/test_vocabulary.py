from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp.problems.vocabulary import END_OF_DOCUMENT, PADDING, UNKNOWN, Vocabulary, train_vocabulary
from tests.problems.conftest import AWKWARD

TEXTS = [
    "def add(self, x):\n    if x:\n        return x + 1\n    return self.add(x)\n\n\n" * 3,
    "class A:\n    def __init__(self):\n        self.value = None\n" * 3,
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return train_vocabulary(TEXTS, 330)


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet=" \t\n\r\u2581\0<>x"))
def test_any_text_comes_back(vocabulary, text):
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.byte_lengths[ids].sum() == len(text.encode())
    assert not {PADDING, END_OF_DOCUMENT, UNKNOWN} & set(ids)


@pytest.mark.parametrize("text", [c.decode() for c in AWKWARD.values()], ids=list(AWKWARD))
def test_awkward_text_comes_back(vocabulary, text):
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_code_has_pieces_of_its_own(vocabulary):
    # Indentation and line ends are most of code: they must not be spelt character by character.
    for text in ["        ", "\n    ", "):\n"]:
        assert len(vocabulary.encode(text)) < len(text)
    # Nor do names and the punctuation around them come apart.
    assert len(vocabulary.encode("self.")) == 1


def test_special_tokens_stand_for_nothing(vocabulary):
    special = [PADDING, END_OF_DOCUMENT, UNKNOWN]
    assert vocabulary.decode(special) == ""
    assert vocabulary.byte_lengths[special].tolist() == [0, 0, 0]
    assert vocabulary.decode([*vocabulary.encode("x = 1"), END_OF_DOCUMENT]) == "x = 1"


def test_bytes_that_are_no_text_become_the_replacement_character(vocabulary):
    first_byte_of_an_emoji = vocabulary.encode("\U0001f600")[0]
    assert vocabulary.decode([first_byte_of_an_emoji]) == "\ufffd"
    assert vocabulary.decode_bytes([first_byte_of_an_emoji]) == b"\xf0"


def test_the_same_texts_give_the_same_model():
    assert train_vocabulary(TEXTS, 330).model == train_vocabulary(TEXTS, 330).model


def test_the_sample_ends_within_a_text(vocabulary, monkeypatch):
    monkeypatch.setattr("t2tp.problems.vocabulary._SAMPLE_BYTES", sum(len(text) for text in TEXTS))
    assert train_vocabulary([*TEXTS, "other" * 99], 330).model == vocabulary.model


def test_long_texts_are_not_dropped():
    long_line = "x = 1 " * 1000 + "abcdefgh" * 5000
    assert len(train_vocabulary([long_line], 285).encode("abcdefgh")) == 1


@pytest.mark.parametrize("ids", [[5, 330], [-1]])
def test_ids_outside_are_refused(vocabulary, ids):
    with pytest.raises(ValueError, match="not all in a vocabulary of 330 pieces"):
        vocabulary.decode(ids)


def test_lone_surrogates_are_refused(vocabulary):
    with pytest.raises(UnicodeEncodeError):
        vocabulary.encode("a\ud800")


def test_too_little_text_for_the_vocabulary_is_said():
    with pytest.raises(ValueError, match="cannot train a vocabulary of 8192 pieces"):
        train_vocabulary(TEXTS, 8192)
