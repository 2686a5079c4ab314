"""`t2tp_decoder` on runs of a few steps."""

import numpy as np
import pytest

from t2tp import checkpoint
from t2tp.problems.vocab.subwords import SubwordVocabulary
from t2tp.trainer.cli import decode
from tests.trainer.command import wrong_flags
from tests.trainer.hooks import events
from tests.trainer.trained_runs import PAIRS, TEXTS, Run, train, train_images

SOURCES = ["two one", "", "sechs sieben acht", "naïve five", "one"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Run:
    return train(tmp_path_factory.mktemp("pairs"), PAIRS)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Run:
    hparams = "mesh_shape=data:2;model:2,layout=batch:data;vocab:model"
    return train(tmp_path_factory.mktemp("texts"), TEXTS, hparams=hparams)


@pytest.mark.slow
def test_results_begin_as_they_are_told(pairs, tmp_path, capsys):
    # Without a beginning, an untrained model may decode the same text, but not with the same score.
    options = "beam_size=1,extra_length=5,write_beam_scores=true"
    beginnings = tmp_path / "beginnings.txt"
    beginnings.write_text("\nONE\n", encoding="utf-8")
    lines = ["two one", "two one"]
    (alone,) = pairs.decoded(tmp_path, lines[:1], options)
    plain, begun = pairs.decoded(tmp_path, lines, options, decode_prefix_file=beginnings)
    assert plain == alone != begun
    beginnings.write_text("ONE\n", encoding="utf-8")
    files = {"decode_from_file": tmp_path / "sources.txt", "decode_prefix_file": beginnings}
    assert pairs.decode(**files) == 2
    assert "beginnings.txt has 1 lines, and" in capsys.readouterr().err


@pytest.mark.slow
def test_a_split_is_decoded_into_three_files_and_scored(pairs, capsys):
    assert pairs.decode(split="validation", decode_hparams="beam_size=1,num_samples=4") == 0
    files = {path.suffix: path for path in (pairs.output_dir / "decodes").iterdir()}
    assert set(files) == {".inputs", ".targets", ".outputs"}
    columns = {s: p.read_text(encoding="utf-8").split("\n")[:-1] for s, p in files.items()}
    assert [line.upper() for line in columns[".inputs"]] == columns[".targets"]
    assert {len(lines) for lines in columns.values()} == {4}
    said = capsys.readouterr().out.split()
    assert said[0] == "bleu" and said[2] == "chrf"
    shown = events.read_scalars(pairs.output_dir / "decode_validation")
    assert set(shown) == {"bleu", "chrf"}


@pytest.mark.ci_only
@pytest.mark.slow
def test_samples_are_the_same_on_any_mesh_compiled_or_not(texts, tmp_path):
    options = "temperature=1,top_k=20,extra_length=6"
    lines = ["import", "def f", "x"]
    alone = texts.decoded(tmp_path, lines, options, mesh_shape="", layout="")
    assert alone == texts.decoded(tmp_path, lines, options)  # on the run's own mesh
    two = {"mesh_shape": "model:2", "layout": "vocab:model"}
    assert alone == texts.decoded(tmp_path, lines, options, **two)
    assert alone != texts.decoded(tmp_path, lines, options, mesh_shape="", layout="", random_seed=5)


def test_how_much_there_is_to_decode_decides_about_xla(pairs, tmp_path, monkeypatch):
    """See tests/decoding/test_options.py."""
    calls = []

    def should_compile(*values):
        calls.append(values)
        raise ValueError("nothing is decoded here")

    monkeypatch.setattr(decode, "should_compile", should_compile)
    options = {"decode_hparams": "beam_size=1,extra_length=1,num_samples=3,batch_size=2"}
    (tmp_path / "lines").write_text("one\tONE\ntwo\tTWO\n")
    assert pairs.decode(split="validation", **options) == 2
    assert pairs.decode(decode_from_file=tmp_path / "lines", **options) == 2
    assert pairs.decode(score_file=tmp_path / "lines", **options) == 2
    saved = checkpoint.latest(pairs.output_dir / "checkpoints")
    shapes = saved.shapes()  # with the optimizer's slots
    num_weights = sum(np.prod(shapes[name]) for name in saved.metadata["trainable"])
    assert 0 < num_weights < sum(np.prod(shape) for shape in shapes.values())
    assert [values[1:] for values in calls] == [(n, 2, num_weights) for n in (3, 2, 0)]


def test_scores_are_those_of_a_beam_search(pairs, tmp_path, capsys):
    options = "beam_size=2,alpha=0,extra_length=9,write_beam_scores=true"
    lines = pairs.decoded(tmp_path, SOURCES[:1], options)
    ((text, score),) = (line.split("\t") for line in lines)
    scored, result = tmp_path / "pairs.txt", tmp_path / "scores.txt"
    scored.write_text(f"{SOURCES[0]}\t{text}\n{SOURCES[0]}\tX\n", encoding="utf-8")
    assert pairs.decode(score_file=scored, decode_to_file=result, xla="false") == 0
    capsys.readouterr()
    assert pairs.decode(score_file=scored, decode_to_file="-", xla="false") == 0
    assert capsys.readouterr().out == result.read_text()
    found = [float(line) for line in result.read_text().split()]
    if len(text) < 9:  # It ends with EOS, which is scored too.
        np.testing.assert_allclose(found[0], float(score), atol=2e-3)
    assert found[1] < 0


@wrong_flags("t2tp_decoder")
def test_what_cannot_be_done_is_said_in_a_sentence(pairs, capsys, flags, says):
    assert pairs.decode(**flags) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error


def test_the_file_is_named_after_what_is_decoded(pairs, tmp_path):
    (tmp_path / "in.txt").write_text("one two\ntwo\n")
    options = {"decode_hparams": "beam_size=2,extra_length=3", "xla": "false"}
    assert pairs.decode(decode_from_file=tmp_path / "in.txt", **options) == 0
    (written,) = tmp_path.glob("in.txt.translate_upper_case.beam2*.decodes")
    assert len(written.read_text().split("\n")) == 3


@pytest.mark.slow
def test_images_are_made(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    run = train_images(tmp_path, train_steps=2)
    base = tmp_path / "made" / "digit"
    flags = {"split": "test", "decode_to_file": base, "xla": "false"}
    assert run.decode(**flags) == 2
    assert "give their number" in capsys.readouterr().err
    assert run.decode(**flags, decode_hparams="num_samples=3,temperature=1") == 0
    paths = sorted(base.parent.iterdir())
    assert [path.name for path in paths] == [f"digit-00{number}.png" for number in range(3)]
    assert {image.open(path).size for path in paths} == {(8, 8)}


WITHOUT_LINES = [
    ("score_file", "one\tONE\ntwo\n", "lines.txt, line 2: no tab"),
    ("score_file", "", "lines.txt is empty: there is nothing to decode or to score\n"),
    ("decode_from_file", "", "lines.txt is empty: there is nothing to decode or to score\n"),
]


@pytest.mark.parametrize(("flag", "content", "says"), WITHOUT_LINES)
def test_a_file_without_lines_for_it_is_refused(pairs, tmp_path, capsys, flag, content, says):
    (tmp_path / "lines.txt").write_text(content)
    assert pairs.decode(**{flag: tmp_path / "lines.txt"}) == 2
    assert f"{tmp_path}/{says}" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_a_line_that_cannot_be_decoded_is_named(texts, tmp_path, monkeypatch, capsys):
    source = tmp_path / "source.txt"
    source.write_text("one\ntwo\nthree\n")
    monkeypatch.setattr(
        SubwordVocabulary, "encode", lambda self, text: [int(text == "one") or int("not a token")]
    )
    assert texts.decode(decode_from_file=source) == 2
    assert "line 2: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("run", ["pairs", "texts"])
def test_lines_that_are_too_long_are_named_and_the_others_decoded(run, request, tmp_path, capsys):
    made = request.getfixturevalue(run)
    flags = {"decode_from_file": tmp_path / "in.txt", "decode_to_file": "-", "xla": "false"}
    options = "beam_size=1,extra_length=5"
    lines = ["two one", "one " * 2000, "one"]

    def printed(given, code):
        (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in given))
        capsys.readouterr()
        assert made.decode(**flags, decode_hparams=options) == code
        return capsys.readouterr()

    wanted = printed(lines[::2], 0).out.split("\n")
    found = printed(lines, 2)
    assert found.out.split("\n") == [wanted[0], "", wanted[1], ""]
    assert f"{tmp_path / 'in.txt'}, line 2: " in found.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]
    assert printed(lines[1:2], 2).out == ""


def test_an_output_is_checked_before_decoding(pairs, tmp_path, capsys, monkeypatch):
    source = tmp_path / "source.txt"
    source.write_text("one\n")
    monkeypatch.setattr(decode, "_Decoding", None)  # Nothing is decoded.
    for output, said in ((source / "x/out", "is not a directory"), (tmp_path, "is a directory")):
        assert pairs.decode(decode_from_file=source, decode_to_file=output) == 2
        assert said in capsys.readouterr().err
