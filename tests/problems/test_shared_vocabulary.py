"""Text problems of a mixture share a vocabulary, and the mixture has its own data."""

import shlex
from itertools import repeat

import numpy as np
import pytest

from t2tp import problems
from t2tp.problems.shared_vocabulary import interleave
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from tests.files import files_in
from tests.problems.prepare.own_pairs import prepare_until

MIXTURE = "mixture:translate_tsv=0.75,translate_textfiles=0.25"
STDLIB = "languagemodel_python_stdlib"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Writes pairs in a table, and in two files."""
    directory = tmp_path_factory.mktemp("files")
    lines = [f"apple number {n}\tApfel Nummer {n}\n" for n in range(600)]
    (directory / "a.tsv").write_text("".join(lines))
    for end, word in (("en", "banana count"), ("fr", "banane numero")):
        (directory / f"b.{end}").write_text("".join(f"{word} {n}\n" for n in range(200)))
    return directory


def options_of(files, more=""):
    return (
        f"translate_tsv.files={files}/*.tsv,translate_textfiles.inputs={files}/b.en,"
        f"translate_textfiles.targets={files}/b.fr{more}"
    )


@pytest.fixture(scope="module")
def data_dir(files, tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    problems.find(MIXTURE, options_of(files, ",vocab_size=310")).prepare(directory)
    return directory


def test_the_parts_share_a_vocabulary_of_the_texts_of_both(data_dir):
    mixture = problems.find(MIXTURE)
    assert mixture.vocab_sizes(data_dir) == {"inputs": 310, "targets": 310}
    manifest = mixture.check_prepared(data_dir)
    inside = mixture.parts_dir(data_dir)
    for part in mixture.parts:
        assert part.check_prepared(inside).vocabulary == manifest.vocabulary
    pieces = {piece.decode("utf-8", "ignore") for piece in load_vocabulary(inside).token_bytes}
    assert {"apple", "banan"} <= {piece.strip() for piece in pieces}
    assert [path.name for path in data_dir.iterdir() if path.is_dir()] == [
        "mixture_translate_tsv+translate_textfiles"
    ]


SHARES = [(0.98, b"app", b"ban"), (0.02, b"ban", b"app")]


@pytest.mark.parametrize(("share", "has", "lacks"), SHARES)
def test_a_problem_of_small_share_has_few_pieces(files, tmp_path, monkeypatch, share, has, lacks):
    """A small vocabulary has only pieces of the problem whose texts are 49 times as frequent."""
    monkeypatch.setattr("t2tp.problems.shared_vocabulary.SAMPLE_BYTES", 50_000)
    mixture = problems.find(
        f"mixture:translate_tsv={share},translate_textfiles={1 - share:.2f}",
        options_of(files, ",vocab_size=300"),
    )
    mixture.prepare(tmp_path)
    pieces = load_vocabulary(mixture.directory(tmp_path)).token_bytes
    assert [piece for piece in pieces if has in piece]
    assert not [piece for piece in pieces if lacks in piece]


def test_a_batch_decodes_to_the_texts_of_both_in_their_shares(data_dir):
    mixture = problems.find(MIXTURE)
    batch = mixture.stream(data_dir, "train", batch_size=40, length=64, seed=1)[3]
    decode = mixture.vocabulary(data_dir).decode
    texts = [decode(row) for row in np.asarray(batch["inputs"])]
    words = [text.split()[0] for text in texts]
    assert words.count("apple") == 30 and words.count("banana") == 10
    first, last = (mixture.decode_example(data_dir, "train", number) for number in (0, 700))
    assert first["inputs"].startswith("apple") and last["inputs"].startswith("banana")
    with pytest.raises(IndexError, match="example 752"):
        mixture.decode_example(data_dir, "train", 752)


def test_the_command_that_makes_them_again_has_the_options_of_each(files, data_dir):
    command = shlex.split(problems.find(MIXTURE).datagen_command(data_dir))
    assert command[:3] == ["t2tp_datagen", f"--problem={MIXTURE}", f"--data_dir={data_dir}"]
    given = command[3].removeprefix("--problem_options=")
    assert (
        problems.find(MIXTURE, given).generation_options()
        == problems.find(MIXTURE, options_of(files, ",vocab_size=310")).generation_options()
    )


def test_what_is_missing_changed_or_damaged_is_said_with_the_mixtures_command(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text("".join(f"apple {n}\tApfel {n}\n" for n in range(100)))
    for end in ("en", "fr"):
        (tmp_path / f"b.{end}").write_text("".join(f"{end} {n}\n" for n in range(100)))
    name, data = "mixture:translate_tsv,translate_textfiles", tmp_path / "data"
    mixture = problems.find(name, options_of(tmp_path, ",vocab_size=290,temperature=2"))
    command = f"t2tp_datagen --problem={name} --data_dir={data} '"
    for look in (mixture.vocab_sizes, mixture.check_prepared, mixture.digest):
        with pytest.raises(FileNotFoundError) as raised:
            look(data)
        assert command in str(raised.value)
    mixture.prepare(data)
    assert mixture.check_prepared(data).origin["shares"] == {"temperature": 2.0, "max_rows": 0}
    (tmp_path / "b.en").write_text("other\n")
    caplog.clear()
    problems.find(name, "temperature=2").vocab_sizes(data)
    (said,) = caplog.messages
    assert f"translate_textfiles, changed: {tmp_path}/b.en; make them again with" in said
    assert command in said and "temperature=2.0" in said
    damaged = mixture.directory(data) / "translate_textfiles" / "vocabulary.model"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ValueError, match="translate_textfiles/vocabulary.model has .* bytes"):
        mixture.check_prepared(data)


@pytest.mark.parametrize("written", [0, 300, 700])
def test_an_interrupted_mixture_has_the_same_files(files, data_dir, tmp_path, monkeypatch, written):
    mixture = problems.find(MIXTURE, options_of(files, ",vocab_size=310"))
    prepare_until(mixture, tmp_path, written)
    # Existing output is reused: the vocabulary is not trained again.
    monkeypatch.setattr(TextProblem, "train_vocabulary", None)
    mixture.prepare(tmp_path)
    made, whole = mixture.directory(tmp_path), mixture.directory(data_dir)
    # Only streams create the index.
    assert files_in(made, ".index") == files_in(whole, ".index")


def test_other_shares_use_the_same_data_and_that_is_said(data_dir, caplog):
    other = problems.find("mixture:translate_tsv=1,translate_textfiles=1")
    other.check_prepared(data_dir)
    assert "texts train the vocabulary, which were [0.75, 0.25]" in caplog.text
    caplog.clear()
    problems.find(MIXTURE).check_prepared(data_dir)
    assert not caplog.text
    assert other.digest(data_dir) == problems.find(MIXTURE).digest(data_dir)


@pytest.mark.parametrize("name", [MIXTURE, "translate_textfiles"])
def test_a_vocabulary_from_elsewhere_is_the_current_one(files, tmp_path, monkeypatch, caplog, name):
    """The other problem's vocabulary changes after an interrupted and a finished preparation."""
    other = problems.find("translate_tsv", f"files={files}/a.tsv")
    home = other.directory(tmp_path)

    def make_other(size):
        other.options.vocab_size = size
        return other.prepare(tmp_path, overwrite=True).vocabulary

    first = make_other(290)
    options = options_of(files) if name == MIXTURE else f"inputs={files}/b.en,targets={files}/b.fr"
    taking = problems.find(name, f"{options},vocabulary_from={home}")
    with monkeypatch.context() as broken:
        broken.setattr("t2tp.problems.prepare.shard_generation.ShardWriter", None)
        with pytest.raises(TypeError):
            taking.prepare(tmp_path)
    second = make_other(300)
    assert taking.prepare(tmp_path).vocabulary == second != first
    problems.find(name).check_prepared(tmp_path)
    assert "the vocabulary in" not in caplog.text
    assert make_other(310) not in (first, second)
    problems.find(name).check_prepared(tmp_path)
    assert caplog.text.count(f"the vocabulary in {home}; make them again with") == 1


def test_both_directions_of_a_problem_have_the_same_data(files, tmp_path):
    options = f"files={files}/a.tsv,vocab_size=290"
    mixture = problems.find("mixture:translate_tsv=1,translate_tsv_rev=1", options)
    assert mixture.prepare(tmp_path).splits["train"].examples == 564  # once, not twice
    batch = mixture.stream(tmp_path, "train", 8, 64)[0]
    decode = mixture.vocabulary(tmp_path).decode
    words = [decode(row).split()[0] for row in np.asarray(batch["inputs"])]
    assert sorted(words) == ["Apfel"] * 4 + ["apple"] * 4
    with pytest.raises(ValueError, match="have the same data, made with the same options"):
        problems.find(mixture.name, f"translate_tsv.files={files}/a.tsv")


def test_a_part_can_be_packed(data_dir):
    mixture = problems.find(MIXTURE, "translate_tsv.arrangement=packed")
    segments = np.asarray(mixture.stream(data_dir, "train", 4, 64)[0]["targets_segmentation"])
    assert sorted(segments.max(1) > 1) == [False, True, True, True]
    with pytest.raises(ValueError, match="of like length cannot be mixed with others"):
        problems.find(MIXTURE, "arrangement=bucketed").stream(data_dir, "train", 4, 64)


REFUSED = [
    (MIXTURE, "documents=lines", "no problem of it has the option 'documents': "),
    (MIXTURE, "translate_tsv.vocab_sise=3", "no hyperparameter 'vocab_sise': did you mean"),
    (MIXTURE, "translate_tsv.vocab_size=300,translate_textfiles.vocab_size=400", "size once,"),
    (f"mixture:{STDLIB}=1,{STDLIB}_bytes=1", "", "other kinds: bpe sub-words .* and bytes"),
    ("mixture:translate_tsv=1,translate_ende_wmt32k=1", "", "none and .*zation nmt_nfkc"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_what_cannot_be_mixed_is_said(name, options, message):
    with pytest.raises(ValueError, match=message):
        problems.find(name, options)


def test_bytes_need_no_vocabulary_of_their_own():
    mixture = problems.find("mixture:languagemodel_python_stdlib_bytes=1")
    assert mixture.directory("data") == mixture.parts[0].directory("data")


def test_texts_are_enough_at_some_size_and_sources_may_be_empty():
    endless, one, other = (lambda: repeat("abc")), (lambda: ["a"]), (lambda: ["b"])
    assert sum(map(len, interleave([endless, one], [1, 1], 1000))) < 1003
    assert list(interleave([list, one, other], [1, 1, 0], 100)) == ["a"]
    assert list(interleave([list, list], [1, 1], 100)) == []
