"""Vocabularies of a tokenizer.json: the model's ids, its EOS, and the bytes of each token."""

import json

import pytest

from t2tp import problems
from t2tp.problems.vocab.special_tokens import read_special_tokens
from t2tp.problems.vocab.vocabulary_file import load_vocabulary, vocabulary_sha256, write_vocabulary
from tests.huggingface.tiny_files import END, write_tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[text]'")

TEXTS = ["the quick fox", "  two  spaces\tand\na line", "Zürich 東京 \N{GRINNING FACE}", ""]


def save(directory, tokenizer, **config):
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def test_pieces_of_bytes_spell_any_text_and_have_its_bytes(tmp_path):
    write_tokenizer(tmp_path)
    vocabulary = load_vocabulary(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(vocabulary) == theirs.get_vocab_size()
    assert vocabulary.end_of_document == theirs.token_to_id(END)
    for text in TEXTS:
        ids = vocabulary.encode(text)
        assert ids == theirs.encode(text).ids
        assert vocabulary.decode([*ids, vocabulary.end_of_document]) == text
        assert vocabulary.decode_bytes(ids) == text.encode()
        assert vocabulary.byte_lengths[ids].sum() == len(text.encode())
    assert vocabulary.byte_lengths[vocabulary.end_of_document] == 0


def test_a_problem_keeps_the_same_vocabulary(tmp_path):
    (tmp_path / "model").mkdir(), (tmp_path / "data").mkdir()
    write_tokenizer(tmp_path / "model")
    before = load_vocabulary(tmp_path / "model")
    write_vocabulary(tmp_path / "data", before)
    after = load_vocabulary(tmp_path / "data")
    assert after.end_of_document == before.end_of_document
    assert after.encode(TEXTS[2]) == before.encode(TEXTS[2])
    assert vocabulary_sha256(tmp_path / "data") == vocabulary_sha256(tmp_path / "model")


def test_unigram_pieces_have_their_spaces_and_spelt_bytes(tmp_path):
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("x", -3.0)]
    pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    model = tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Metaspace(prepend_scheme="never")]
    )
    made.add_special_tokens(["</s>"])
    save(tmp_path, made, eos_token={"content": "</s>"})
    vocabulary = load_vocabulary(tmp_path)
    ids = vocabulary.encode(" the xé")
    assert ids[0] == 2 and vocabulary.end_of_document == 1
    assert vocabulary.decode_bytes([*ids, 1]) == " the xé".encode()


def test_word_pieces_end_with_their_separator(tmp_path):
    words = {"[UNK]": 0, "[SEP]": 1, "fox": 2, "##es": 3, "the": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.decoder = tokenizers.decoders.WordPiece()
    made.add_special_tokens(["[SEP]"])
    save(tmp_path, made, sep_token="[SEP]")
    vocabulary = load_vocabulary(tmp_path)
    ids = vocabulary.encode("The foxes")
    assert ids == [4, 2, 3] and vocabulary.end_of_document == 1
    assert vocabulary.decode([*ids, 1]) == "the foxes"
    assert vocabulary.byte_lengths[ids].sum() == len(" the foxes")
    # Bits per byte count the bytes of the original text, including spaces and unknown words.
    text = "The  foxes,\nund Füchse"
    stored = problems.find("languagemodel_textfiles").encoder(tmp_path)({"text": text})
    assert stored.text_bytes == len(text.encode()) != vocabulary.byte_lengths[ids].sum()


def test_files_that_do_not_name_their_special_tokens(tmp_path):
    """GPT-2's first files name the end of a text only in `config.json`, and BERT's not at all."""
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert load_vocabulary(tmp_path).end_of_document == 0
    words = {"[UNK]": 0, "fox": 1}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.add_special_tokens(["[MASK]", "[SEP]", "[CLS]"])
    (tmp_path / "bert").mkdir()
    save(tmp_path / "bert", made, do_lower_case=True)
    vocabulary = load_vocabulary(tmp_path / "bert")
    assert (vocabulary.end_of_document, vocabulary.prefix_tokens) == (3, (4,))
    write_vocabulary(tmp_path, vocabulary)
    assert load_vocabulary(tmp_path).prefix_tokens == (4,)
    assert read_special_tokens(tmp_path / "bert").mask == "[MASK]"
    to_class = problems.find("sentiment_imdb").encoder(tmp_path / "bert")
    stored = to_class({"inputs": "fox", "label": 1})
    assert stored.columns["inputs"].tolist() == [4, 1, 3]
    to_predict = problems.find("languagemodel_textfiles").encoder(tmp_path / "bert")
    assert to_predict({"text": "fox"}).columns["targets"].tolist() == [4, 1, 3]


def replace(old, new):
    return {"type": "Replace", "pattern": old, "content": new}


def often(part):
    return {"type": "Sequence", "normalizers": [part] * 11, "decoders": [part] * 11}


HOSTILE = {
    "empty": {"normalizer": replace({"Regex": ""}, "x" * 2000)},
    "doubled": {"normalizer": often(replace({"String": "a"}, "aa"))},
    "prepended": {"normalizer": often({"type": "Prepend", "prepend": "x" * 100})},
    "decoded": {"decoder": often(replace({"String": "a"}, "aa"))},
    "table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "panic": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "id": {"added_tokens": [{"id": 2**31, "content": "q", "special": True}]},
    "many tokens": {"model": {"vocab": [0] * 1_048_577}},
    "many added tokens": {"added_tokens": [0] * 65_537},
    "types": {"decoder": {"type": "Sequence", "decoders": 5}},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tokenizer_is_refused(request, change, tmp_path):
    write_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    counted = "many" in request.node.name  # The entries are counted before they are looked at.
    wanted = r"(577|537) entries: at most" if counted else r"tokenizer\.json"
    with pytest.raises(ValueError, match=wanted):
        vocabulary = load_vocabulary(tmp_path)
        vocabulary.encode("a" * 9)
        len(vocabulary)


WRONG = [({}, "has no eos_token"), ({"eos_token": "<none>"}, "has no token '<none>'")]


@pytest.mark.parametrize(("config", "wanted"), WRONG)
def test_a_tokenizer_without_an_end_is_refused(config, wanted, tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=wanted):
        load_vocabulary(tmp_path)
