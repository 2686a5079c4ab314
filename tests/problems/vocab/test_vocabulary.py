import io
import itertools

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t2tp import problems
from t2tp.problems.vocab import subwords
from t2tp.problems.vocab.characters import CharacterVocabulary, count_characters
from t2tp.problems.vocab.subwords import SubwordVocabulary, train_subwords
from t2tp.problems.vocab.vocabulary import (
    END_OF_DOCUMENT,
    FIRST_PIECE,
    PADDING,
    UNKNOWN,
    Vocabulary,
    reserved_token_bytes,
)
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
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
    assert [any_vocabulary.decode(row) for row in ids.to_list()] == GRAPH_TEXTS
    for each in (ids, ids.to_tensor()):
        texts = tf.function(any_vocabulary.decode_in_graph)(each).numpy()
        assert [text.decode() for text in texts] == GRAPH_TEXTS


def test_single_bytes_have_the_same_ids_everywhere(any_vocabulary):
    assert any_vocabulary.token_bytes[:FIRST_PIECE] == reserved_token_bytes()


def test_a_vocabulary_comes_back_from_its_file(any_vocabulary, tmp_path):
    (tmp_path / any_vocabulary.file_name).write_bytes(any_vocabulary.contents())
    loaded = load_vocabulary(tmp_path)
    assert loaded.token_bytes == any_vocabulary.token_bytes
    with pytest.raises(FileNotFoundError, match="no vocabulary in"):
        load_vocabulary(tmp_path / "elsewhere")


def test_the_most_frequent_characters_have_tokens():
    vocabulary = count_characters(["eeee\u00e9\u00e9\u00e9\u4e2d\u4e2d", "ea"], FIRST_PIECE + 3)
    assert len(vocabulary) == FIRST_PIECE + 3
    assert [len(vocabulary.encode(character)) for character in "e\u00e9\u4e2d"] == [1, 1, 1]
    assert len(vocabulary.encode("\u20ac")) == 3


def test_normalization_is_said_and_done():
    wide = ["\uff21 \ufb01ne " * 5 + "abcdefgh Afine" * 3]
    kept = train_subwords(wide, 280)
    assert kept.decode(kept.encode("\uff21\ufb01")) == "\uff21\ufb01"
    changed = train_subwords(wide, 280, normalization="nfkc")
    assert changed.decode(changed.encode("\uff21\ufb01")) == "Afi"
    assert kept.is_lossless and not changed.is_lossless
    with pytest.raises(ValueError, match="no normalization 'nfc': there are none, nfkc"):
        train_subwords(wide, 280, normalization="nfc")
    with pytest.raises(ValueError, match="no sub-word model 'wordpiece'"):
        train_subwords(wide, 280, "wordpiece")


@pytest.mark.parametrize("maker", [*MAKERS, "nmt_nfkc"])
def test_a_long_text_is_encoded_in_parts_as_at_once(maker):
    makers = {**MAKERS, "nmt_nfkc": lambda: train_subwords(TEXTS, 330, normalization="nmt_nfkc")}
    vocabulary = makers[maker]()
    text = "".join([*TEXTS, *(each.decode(errors="ignore") for each in AWKWARD.values())])
    text += "  a b\u0301 c \u0301d \u3000e" + "x " * 50 + " y" * 50 + "  z  " * 50
    whole = vocabulary.encode(text)
    parts = [*vocabulary.encode_parts(text, 3)]
    assert len(parts) > 80
    assert [token for part in parts for token in part] == whole
    assert vocabulary.encode("") == []


def test_code_has_pieces_of_its_own(vocabulary):
    # Indentation and line ends are most of code: they must not be encoded character by character.
    for text in ["        ", "\n    ", "):\n"]:
        assert len(vocabulary.encode(text)) < len(text)
    # Names and the punctuation around them are not split either.
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


@pytest.mark.parametrize("count", [1, 2, 10])
def test_each_of_a_few_large_texts_has_its_share_of_the_sample(count):
    texts = [f"{number:04} " * 400_000 for number in range(count)]
    chosen = "".join(subwords._sample(texts, 200_000))
    assert 190_000 < len(chosen) <= 200_000
    for number in range(count):
        share = chosen.count(f"{number:04} ") * 5 / len(chosen) * count
        assert 0.4 < share < 1.8, (number, share)


def test_a_large_text_is_looked_at_from_its_begin_to_its_end():
    chosen = subwords._sample(["".join(f"{number:07}\n" for number in range(250_000))], 100_000)
    found = [int(piece.split("\n")[1]) for piece in chosen]
    assert found == sorted(found)
    assert np.histogram(found, 5, (0, 250_000))[0].min() > 2


def test_many_texts_are_sampled_by_the_first_of_them():
    """The texts are shuffled already, so later texts need not be read."""
    texts = (f"{number:09}\n" for number in itertools.count())
    assert subwords._sample(texts, 12_000) == [f"{number:09}\n" for number in range(1200)]


def test_texts_with_sentencepieces_own_signs_are_learned_from():
    texts = [f"hello{sign}world zebra" for sign in "\u2585\u2581\u2047\x00\t" for _ in range(50)]
    for sign in range(5):
        vocabulary = train_subwords(texts[50 * sign : 50 * sign + 50], 285)
        assert len(vocabulary.encode("zebra")) < 5, texts[50 * sign]
        assert vocabulary.decode(vocabulary.encode(texts[50 * sign])) == texts[50 * sign]


def test_a_size_that_nobody_asked_for_is_a_ceiling(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("".join(f"the line {number}\n" for number in range(99)))
    options = f"files={tmp_path}/a.txt,documents=lines"
    problem = problems.find("languagemodel_textfiles", options)
    problem.prepare(tmp_path / "data")
    size = problem.vocab_sizes(tmp_path / "data")["targets"]
    assert 270 < size < 600
    assert f"the texts allow a vocabulary of at most {size} pieces" in caplog.text
    asked = problems.find("languagemodel_textfiles", f"{options},vocab_size=8192")
    with pytest.raises(ValueError, match=f"the texts allow at most {size} pieces"):
        asked.prepare(tmp_path / "other")


def test_long_texts_are_not_dropped():
    long_line = "x = 1 " * 1000 + "abcdefgh" * 5000
    assert len(train_subwords([long_line], 285).encode("abcdefgh")) == 1


@pytest.mark.parametrize("ids", [[5, 330], [-1]])
def test_ids_outside_are_refused(vocabulary, ids):
    with pytest.raises(ValueError, match="not all in a vocabulary of 330 pieces"):
        vocabulary.decode(ids)


GIVE = r"(\d+) pieces: give --vocab_size=\1 or {}, or vocab_size=\1 among --problem_options"


REFUSED = [
    (TEXTS, 8192, rf"the texts allow at most {GIVE.format('less')}"),
    (TEXTS, 270, rf"the texts need at least {GIVE.format('more')}"),
    (["", ""], 300, "the texts are empty"),
    ([], 300, "the texts are empty"),
]


@pytest.mark.parametrize(("texts", "size", "message"), REFUSED)
def test_a_vocabulary_that_cannot_be_made_is_said_in_one_sentence(texts, size, message):
    whole = f"^cannot train a vocabulary of {size} pieces: {message}$"
    with pytest.raises(ValueError, match=whole):
        train_subwords(texts, size)


def test_a_model_of_sentencepiece_with_other_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=34, minloglevel=2
    )
    with pytest.raises(
        ValueError, match="train it with pad_id=0, eos_id=1, .*, byte_fallback=True"
    ):
        SubwordVocabulary(model.getvalue())


FAILURES = [ValueError("a.tsv, line 61"), OSError(5, "gone", "a.tsv"), KeyboardInterrupt()]


@pytest.mark.parametrize("failure", FAILURES)
def test_what_is_wrong_with_the_texts_comes_out_as_it_is(failure):
    def texts():
        yield from TEXTS
        raise failure

    with pytest.raises(type(failure)) as raised:
        train_subwords(texts(), 300)
    assert raised.value is failure
