"""`t2tp_decoder` on runs of a few steps."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from t2tp import checkpoint
from t2tp.decoding import DecodeOptions
from t2tp.mesh.processes import Place
from t2tp.trainer import codecs, decoder_command
from t2tp.trainer.run_config import RunConfig
from tests.trainer import events
from tests.trainer.trained_runs import Run, train

SOURCES = ["two one", "", "sechs sieben acht", "naïve five", "one"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("pairs")
    return train(folder, "translate_upper_case", "transformer", "transformer_test")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("texts")
    hparams = "mesh_shape=data:2;model:2,layout=batch:data;vocab:model"
    return train(
        folder, "languagemodel_encodings", "transformer_lm", "transformer_lm_test", hparams=hparams
    )


def decoded(
    run: Run, tmp_path, lines: list[str], options: str, xla: str = "false", **flags
) -> list[str]:
    source, result = tmp_path / "sources.txt", tmp_path / "decoded.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"decode_from_file": source, "decode_to_file": result}
    assert run.decode(**files, decode_hparams=options, xla=xla, **flags) == 0
    return result.read_text(encoding="utf-8").split("\n")[:-1]


def test_a_file_is_decoded_in_its_order_whatever_the_batches(pairs, tmp_path):
    options = "beam_size=2,extra_length=5"
    found = decoded(pairs, tmp_path, SOURCES, options)
    assert len(found) == len(SOURCES)
    alone = [decoded(pairs, tmp_path, [line], f"{options},batch_size=1")[0] for line in SOURCES[:3]]
    assert found[:3] == alone


def test_beams_are_written_with_their_scores(pairs, tmp_path):
    options = "beam_size=3,extra_length=5,return_beams=true,write_beam_scores=true"
    for line in decoded(pairs, tmp_path, SOURCES[:2], options):
        fields = line.split("\t")
        scores = [float(field) for field in fields[1::2]]
        assert scores == sorted(scores, reverse=True) and len(fields) == 2 * len(scores)


def test_results_begin_as_they_are_told(pairs, tmp_path, capsys):
    options = "beam_size=1,extra_length=5"
    beginnings = tmp_path / "beginnings.txt"
    beginnings.write_text("\nONE\n", encoding="utf-8")
    lines = ["two one", "two one"]
    (alone,) = decoded(pairs, tmp_path, lines[:1], options)
    plain, begun = decoded(pairs, tmp_path, lines, options, decode_prefix_file=beginnings)
    assert plain == alone != begun
    beginnings.write_text("ONE\n", encoding="utf-8")
    files = {"decode_from_file": tmp_path / "sources.txt", "decode_prefix_file": beginnings}
    assert pairs.decode(**files) == 2
    assert "they must have as many" in capsys.readouterr().err


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


def test_references_are_compared_with(pairs, tmp_path, capsys):
    reference = tmp_path / "reference.txt"
    reference.write_text("TWO ONE\nONE\n")
    decoded(pairs, tmp_path, ["two one", "one"], "beam_size=1", decode_reference=reference)
    assert capsys.readouterr().out.startswith("bleu ")


def test_what_is_typed_is_decoded(texts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("import\ndef \n"))
    flags = {"mesh_shape": "", "layout": "", "xla": "false"}
    assert texts.decode(decode_interactive="true", decode_hparams="temperature=1", **flags) == 0
    assert capsys.readouterr().out.count("\n") >= 2


def test_samples_are_the_same_on_any_mesh(texts, tmp_path):
    options = "temperature=1,top_k=20,extra_length=8"
    lines = ["import", "def f", "x"]
    wanted = decoded(texts, tmp_path, lines, options)  # the run's own mesh
    assert wanted == decoded(texts, tmp_path, lines, options, mesh_shape="", layout="")
    assert wanted != decoded(texts, tmp_path, lines, options, random_seed=5)


def test_samples_are_the_same_where_xla_compiles_a_mesh(texts, tmp_path):
    options = "temperature=1,top_k=20,extra_length=8,batch_size=2"
    lines = ["import", "def f", "x"]
    assert decoded(texts, tmp_path, lines, options, xla="true") == decoded(
        texts, tmp_path, lines, options
    )


@pytest.mark.parametrize(
    ("mesh_shape", "lines", "given", "pays"),
    [
        ("", 16, {}, True),
        ("", 15, {}, False),
        ("data:2;model:2", 64, {}, True),  # of several devices it takes as many times as long
        ("data:2;model:2", 63, {}, False),
        ("data:4", 64, {}, False),  # they share nothing
        ("", 16, {"weights": 124_000_000}, False),  # products take all the time
        ("data:2;model:2", 0, {"split": "test", "decode_from_file": None}, True),
        ("data:2;model:2", 0, {"split": "test", "num_samples": 63}, False),
        ("", 0, {"split": "test", "num_samples": 16}, True),
        ("", 64, {"score_file": "x", "decode_from_file": None}, False),
        ("data:2;model:2", 64, {"place": Place(0, 2, "localhost:1")}, False),  # two processes
    ],
)
def test_much_is_decoded_by_what_xla_compiles(mesh_shape, lines, given, pays, monkeypatch):
    flags = {"split": None, "decode_from_file": "x", "score_file": None, **given}
    place = flags.pop("place", None)
    options = DecodeOptions(batch_size=2, num_samples=flags.pop("num_samples", -1))
    config = RunConfig("run", mesh_shape=mesh_shape, layout="batch:data;heads:model")
    weights = flags.pop("weights", 1_000_000)
    monkeypatch.setattr(decoder_command, "_num_weights", lambda config: weights)
    asked = (SimpleNamespace(**flags), config, options, [""] * lines, place)
    monkeypatch.setattr(decoder_command, "has_gpu", lambda: False)
    assert decoder_command.pays_to_compile(*asked) == pays
    monkeypatch.setattr(decoder_command, "has_gpu", lambda: True)
    assert decoder_command.pays_to_compile(*asked) == (pays and not mesh_shape)


def test_the_weights_of_a_run_are_counted_without_what_its_optimizer_keeps(texts):
    saved = checkpoint.latest(texts.output_dir / "checkpoints")
    shapes = saved.shapes()
    found = decoder_command._num_weights(RunConfig(str(texts.output_dir)))
    assert found == sum(np.prod(shapes[name]) for name in saved.metadata["trainable"])
    assert 0 < found < sum(np.prod(shape) for shape in shapes.values())


def test_scores_are_those_of_a_beam_search(pairs, tmp_path):
    options = "beam_size=2,alpha=0,extra_length=9,write_beam_scores=true"
    lines = decoded(pairs, tmp_path, SOURCES[:1], options)
    ((text, score),) = (line.split("\t") for line in lines)
    scored, result = tmp_path / "pairs.txt", tmp_path / "scores.txt"
    scored.write_text(f"{SOURCES[0]}\t{text}\n{SOURCES[0]}\tX\n", encoding="utf-8")
    assert pairs.decode(score_file=scored, decode_to_file=result, xla="false") == 0
    found = [float(line) for line in result.read_text().split()]
    if len(text) < 9:  # it has an end, which is scored too; and its symbols are its only spelling
        np.testing.assert_allclose(found[0], float(score), atol=2e-3)
    assert found[1] < 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "give one of"),
        ({"split": "validation", "score_file": "x"}, "give one of"),
        ({"split": "vali"}, "validation"),
        ({"decode_from_file": "/nowhere/file"}, "/nowhere/file"),
        ({"split": "validation", "decode_hparams": "beam=4"}, "beam_size"),
        (
            {"split": "validation", "decode_hparams": "beam_size=4,temperature=1"},
            "one or the other",
        ),
        ({"split": "validation", "checkpoint_path": "/nowhere"}, "/nowhere"),
        ({"splt": "validation"}, "split"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(pairs, capsys, flags, said):
    assert pairs.decode(**flags) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_a_line_without_a_tab_is_named(pairs, tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("one\tONE\ntwo\n")
    assert pairs.decode(score_file=tmp_path / "lines.txt") == 2
    assert "line 2 has no tab" in capsys.readouterr().err


@pytest.mark.slow
def test_the_program_as_people_start_it(pairs, tmp_path):
    (tmp_path / "in.txt").write_text("one two\ntwo\n")
    flags = pairs.flags(
        decode_from_file=tmp_path / "in.txt", decode_hparams="beam_size=2,extra_length=3"
    )
    program = [sys.executable, "-m", "tests.trainer.tiny_pairs", *flags]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("in.txt.translate_upper_case.beam2*.decodes")
    assert len(written.read_text().split("\n")) == 3


@pytest.mark.slow
def test_pictures_are_made(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    run = train(
        tmp_path,
        "image_digits_gen",
        "mtf_image_transformer",
        "mtf_image_transformer_digits",
        train_steps=2,
        hparams="batch_size=8,num_hidden_layers=1,mesh_shape=,layout=",
    )
    base = tmp_path / "made" / "digit"
    flags = {"split": "test", "decode_to_file": base, "xla": "false"}
    assert run.decode(**flags) == 2
    assert "say how many" in capsys.readouterr().err
    assert run.decode(**flags, decode_hparams="num_samples=3,temperature=1") == 0
    paths = sorted(base.parent.iterdir())
    assert [path.name for path in paths] == [f"digit-00{number}.png" for number in range(3)]
    assert {image.open(path).size for path in paths} == {(8, 8)}


def test_an_empty_file_is_refused(pairs, tmp_path, capsys):
    empty = tmp_path / "empty.txt"
    empty.touch()
    for flag in ("decode_from_file", "score_file"):
        assert pairs.decode(**{flag: empty}) == 2
        assert capsys.readouterr().err.endswith(
            "empty.txt is empty: there is nothing to decode or to score\n"
        )
    assert list(tmp_path.iterdir()) == [empty]


def test_a_line_that_cannot_be_decoded_is_named(texts, tmp_path, monkeypatch, capsys):
    source = tmp_path / "source.txt"
    source.write_text("one\ntwo\nthree\n")
    monkeypatch.setattr(
        codecs._TextCodec, "encode", lambda self, text: [int(text == "one") or int("not a token")]
    )
    assert texts.decode(decode_from_file=source) == 2
    assert "line 2: " in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_decoding(
    pairs, tmp_path, capsys, monkeypatch
):
    source = tmp_path / "source.txt"
    source.write_text("one\n")
    monkeypatch.setattr(decoder_command, "_Decoding", None)  # Nothing is decoded.
    for output, said in ((source / "x/out", "is not a folder"), (tmp_path, "is a folder")):
        assert pairs.decode(decode_from_file=source, decode_to_file=output) == 2
        assert said in capsys.readouterr().err
