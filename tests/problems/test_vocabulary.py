from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp.problems.characters import CharacterVocabulary, count_characters
from t2tp.problems.subwords import train_subwords
from t2tp.problems.text import load_vocabulary
from t2tp.problems.vocabulary import (
    END_OF_DOCUMENT,
    PADDING,
    SPELLING_TOKENS,
    UNKNOWN,
    Vocabulary,
    spelling_bytes,
)
from tests.problems.conftest import AWKWARD

TEXTS = [
    "def add(self, x):\n    if x:\n        return x + 1\n    return self.add(x)\n\n\n" * 3,
    "class A:\n    def __init__(self):\n        self.value = None\n" * 3,
]


MAKERS = {
    "bpe": lambda: train_subwords(TEXTS, 330),
    "unigram": lambda: train_subwords(TEXTS, 290, "unigram"),
    "bytes": CharacterVocabulary,
    "characters": lambda: count_characters(TEXTS, 275),
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return MAKERS["bpe"]()


@pytest.fixture(scope="module", params=MAKERS)
def any_vocabulary(request) -> Vocabulary:
    return MAKERS[request.param]()


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet=" \t\n\r\u2581\0<>x"))
def test_any_text_comes_back(any_vocabulary, text):
    vocabulary = any_vocabulary
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.byte_lengths[ids].sum() == len(text.encode())
    assert not {PADDING, END_OF_DOCUMENT, UNKNOWN} & set(ids)


@pytest.mark.parametrize("text", [c.decode() for c in AWKWARD.values()], ids=list(AWKWARD))
def test_awkward_text_comes_back(any_vocabulary, text):
    assert any_vocabulary.decode(any_vocabulary.encode(text)) == text


GRAPH_TEXTS = [
    *(contents.decode() for contents in AWKWARD.values()),
    "",
    "\u2581",
    "a\u2581\u2581b\u2581",
    "  return x\n",
]


def test_tensorflow_makes_the_same_of_texts(any_vocabulary):
    encode = tf.function(
        any_vocabulary.encode_in_graph, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    ids = encode(tf.constant(GRAPH_TEXTS))
    assert ids.dtype == tf.int32
    assert ids.to_list() == [any_vocabulary.encode(text) for text in GRAPH_TEXTS]
    for each in (ids, ids.to_tensor()):
        texts = tf.function(any_vocabulary.decode_in_graph)(each).numpy()
        assert [text.decode() for text in texts] == GRAPH_TEXTS


def test_single_bytes_have_the_same_ids_everywhere(any_vocabulary):
    assert any_vocabulary.token_bytes[:SPELLING_TOKENS] == spelling_bytes()


def test_a_vocabulary_comes_back_from_its_file(any_vocabulary, tmp_path):
    (tmp_path / any_vocabulary.file_name).write_bytes(any_vocabulary.contents())
    loaded = load_vocabulary(tmp_path)
    assert loaded.token_bytes == any_vocabulary.token_bytes
    with pytest.raises(FileNotFoundError, match="no vocabulary in"):
        load_vocabulary(tmp_path / "elsewhere")


def test_the_most_frequent_characters_have_tokens():
    vocabulary = count_characters(["eeee\u00e9\u00e9\u00e9\u4e2d\u4e2d", "ea"], SPELLING_TOKENS + 3)
    assert len(vocabulary) == SPELLING_TOKENS + 3
    assert [len(vocabulary.encode(character)) for character in "e\u00e9\u4e2d"] == [1, 1, 1]
    assert len(vocabulary.encode("\u20ac")) == 3


def test_normalization_is_said_and_done():
    wide = ["\uff21 \ufb01ne " * 5 + "abcdefgh Afine" * 3]
    kept = train_subwords(wide, 280)
    assert kept.decode(kept.encode("\uff21\ufb01")) == "\uff21\ufb01"
    changed = train_subwords(wide, 280, normalization="nfkc")
    assert changed.decode(changed.encode("\uff21\ufb01")) == "Afi"
    with pytest.raises(ValueError, match="no normalization 'nfc': there are none, nfkc"):
        train_subwords(wide, 280, normalization="nfc")
    with pytest.raises(ValueError, match="no sub-word model 'wordpiece'"):
        train_subwords(wide, 280, "wordpiece")


@pytest.mark.parametrize("maker", [*MAKERS, "nmt_nfkc"])
def test_a_long_text_is_encoded_in_parts_as_at_once(maker, monkeypatch):
    makers = {**MAKERS, "nmt_nfkc": lambda: train_subwords(TEXTS, 330, normalization="nmt_nfkc")}
    vocabulary = makers[maker]()
    text = "".join([*TEXTS, *(each.decode(errors="ignore") for each in AWKWARD.values())])
    text += "  a b\u0301 c \u0301d \u3000e" + "x " * 50 + " y" * 50 + "  z  " * 50
    whole = vocabulary.encode(text)
    for module in ("characters", "subwords"):
        monkeypatch.setattr(f"t2tp.problems.{module}._PART_CHARACTERS", 3)
    parts = [*vocabulary.encode_parts(text)]
    assert len(parts) > 80
    assert [token for part in parts for token in part] == whole == vocabulary.encode(text)
    assert vocabulary.encode("") == []


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


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_texts_give_the_same_model(model_type):
    one, other = (train_subwords(TEXTS, 290, model_type).model for _ in range(2))
    assert one == other


def test_the_sample_ends_within_a_text(vocabulary, monkeypatch):
    monkeypatch.setattr("t2tp.problems.subwords.SAMPLE_BYTES", sum(len(text) for text in TEXTS))
    assert train_subwords([*TEXTS, "other" * 99], 330).model == vocabulary.model


def test_long_texts_are_not_dropped():
    long_line = "x = 1 " * 1000 + "abcdefgh" * 5000
    assert len(train_subwords([long_line], 285).encode("abcdefgh")) == 1


@pytest.mark.parametrize("ids", [[5, 330], [-1]])
def test_ids_outside_are_refused(vocabulary, ids):
    with pytest.raises(ValueError, match="not all in a vocabulary of 330 pieces"):
        vocabulary.decode(ids)


def test_lone_surrogates_are_refused(vocabulary):
    with pytest.raises(UnicodeEncodeError):
        vocabulary.encode("a\ud800")


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (TEXTS, 8192, r"the texts allow at most (\d+) pieces: give --vocab_size=\1 or less"),
        (TEXTS, 270, r"the texts need at least (\d+) pieces: give --vocab_size=\1 or more"),
        (["", ""], 300, "the texts are empty"),
        ([], 300, "the texts are empty"),
    ],
)
def test_a_vocabulary_that_cannot_be_made_is_said_in_one_sentence(texts, size, message):
    whole = f"^cannot train a vocabulary of {size} pieces: {message}$"
    with pytest.raises(ValueError, match=whole):
        train_subwords(texts, size)


@pytest.mark.parametrize(
    "failure", [ValueError("a.tsv, line 61"), OSError(5, "gone", "a.tsv"), KeyboardInterrupt()]
)
def test_what_is_wrong_with_the_texts_comes_out_as_it_is(failure):
    def texts():
        yield from TEXTS
        raise failure

    with pytest.raises(type(failure)) as raised:
        train_subwords(texts(), 300)
    assert raised.value is failure
