"""Exported models, in a process of plain TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.trainer.t2tp_exporter import main as exporter
from tests.trainer.trained_runs import Run, train

SOURCES = ["two one", "sechs sieben acht", "naïve five", "one", "\ttab"]
OPTIONS = "beam_size=2,extra_length=6,return_beams=true,write_beam_scores=true"

# Loads a SavedModel without t2tp, which it could not import.
_PLAIN = """
import json, os, sys
sys.path[:] = [p for p in sys.path if p not in ("", os.getcwd())]
for name in ("t2tp", "mesh_tensorflow"):
    sys.modules[name] = None  # importing it fails
import tensorflow as tf
import tensorflow_text
path, given = sys.argv[1], json.loads(sys.argv[2])
serve = tf.saved_model.load(path).signatures[given["signature"]]
answer = serve(**{k: tf.constant(v, given["dtypes"][k]) for k, v in given["inputs"].items()})
def plain(x):
    if x.dtype == tf.string:
        return [[t.decode() for t in row] if isinstance(row, list) else row.decode()
                for row in x.numpy().tolist()]
    return x.numpy().tolist()
print(json.dumps({k: plain(v) for k, v in answer.items()}))
"""


def ask(path: Path, signature: str, dtypes: dict[str, str], **inputs: object) -> dict:
    """What a SavedModel answers in a process without t2tp."""
    given = json.dumps({"signature": signature, "dtypes": dtypes, "inputs": inputs})
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, path, given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def export(run: Run, capsys: pytest.CaptureFixture, **flags: object) -> Path:
    assert exporter(["t2tp_exporter", *run.flags(**flags)]) == 0
    return Path(capsys.readouterr().out.split()[-1])


def decoded(run: Run, tmp_path: Path, lines: list[str], **flags: object) -> list[list[str]]:
    """What `t2tp_decoder` makes of the lines: fields."""
    source, result = tmp_path / "sources.txt", tmp_path / "decoded.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"decode_from_file": source, "decode_to_file": result, "xla": "false"}
    assert run.decode(**files, **flags) == 0
    return [line.split("\t") for line in result.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.slow
def test_a_text_model_answers_as_the_decoder(tmp_path, capsys):
    run = train(tmp_path, "translate_upper_case", "transformer", "transformer_test")
    path = export(run, capsys, decode_hparams=OPTIONS)
    assert path.parent == run.output_dir / "export"
    answer = ask(path, "serving_default", {"inputs": "string"}, inputs=SOURCES)
    wanted = decoded(run, tmp_path, SOURCES, decode_hparams=OPTIONS)
    for row, scores, fields in zip(answer["outputs"], answer["scores"], wanted, strict=True):
        assert row[: len(fields) // 2] == [f.replace("\\t", "\t") for f in fields[::2]]
        assert scores == pytest.approx([float(f) for f in fields[1::2]], abs=1e-4)
    assert exporter(["t2tp_exporter", *run.flags(max_input_length=99)]) == 2
    assert "max_length" in capsys.readouterr().err


@pytest.mark.slow
def test_a_language_model_of_a_mesh_answers_from_one_device(tmp_path, capsys):
    hparams = "mesh_shape=data:2;model:2,layout=batch:data;vocab:model;heads:model"
    run = train(
        tmp_path,
        "languagemodel_encodings",
        "transformer_lm",
        "transformer_lm_test",
        hparams=hparams,
    )
    options = "temperature=0.9,top_k=30,extra_length=8"
    path = export(run, capsys, decode_hparams=f"{options},batch_size=2", max_input_length=16)
    prompts = ["import codecs", "", "def "]
    answer = ask(path, "serving_default", {"inputs": "string"}, inputs=prompts)
    wanted = [fields[0] for fields in decoded(run, tmp_path, prompts, decode_hparams=options)]
    assert [
        text.translate({9: "\\t", 10: "\\n", 13: "\\r"}) for text in answer["outputs"]
    ] == wanted
    tokens = ask(
        path,
        "tokens",
        {"ids": "int32", "lengths": "int32"},
        ids=[[7, 8, 0], [9, 0, 0]],
        lengths=[2, 0],
    )
    assert len(tokens["ids"]) == 2 and all(n <= 8 for row in tokens["lengths"] for n in row)


@pytest.mark.slow
def test_a_classifier_answers_with_classes(tmp_path, capsys):
    run = train(tmp_path, "image_digits", "mlp", "mlp_tiny")
    path = export(run, capsys)
    pictures = [[[[0.1]] * 8] * 8, [[[0.9]] * 8] * 8, [[[0.5]] * 8] * 8]
    answer = ask(path, "serving_default", {"inputs": "float32"}, inputs=pictures)
    for row, number in zip(answer["probabilities"], answer["classes"], strict=True):
        assert sum(row) == pytest.approx(1, abs=1e-5) and row[number] == max(row)


def test_nothing_is_exported_of_a_folder_without_a_run(tmp_path, capsys):
    flags = [f"--output_dir={tmp_path}", f"--data_dir={tmp_path}"]
    assert exporter(["t2tp_exporter", *flags]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
