"""Exported models, in a process of plain TensorFlow."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.trainer.cli.programs import t2tp_exporter as exporter
from tests.page_blocks import DOCS, blocks
from tests.trainer.command import refused
from tests.trainer.trained_runs import PAIRS, TEXTS, Run, train
from tests.warm_processes import WarmProcess

SOURCES = ["two one", "sechs sieben acht", "naïve five", "one", "\ttab"]
OPTIONS = "beam_size=2,extra_length=6,return_beams=true,write_beam_scores=true"

# Answers requests like TensorFlow Serving over REST, with the signatures of a SavedModel. It cannot
# import t2tp. For each line of JSON, [path, bodies], it prints the answers as one line.
_SERVER = """
import json, os, sys
sys.path[:] = [p for p in sys.path if p not in ("", os.getcwd())]
for name in ("t2tp", "mesh_tensorflow"):
    sys.modules[name] = None  # importing it fails
import tensorflow as tf
import tensorflow_text
def plain(x):
    return x.decode() if isinstance(x, bytes) else [*map(plain, x)] if isinstance(x, list) else x
def answer(model, body):
    serve = model.signatures[body.pop("signature_name", "serving_default")]
    ((kind, inputs),) = body.items()
    assert kind == "inputs", kind
    specs = serve.structured_input_signature[1]
    assert inputs.keys() == specs.keys(), specs
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    for name, spec in specs.items():
        assert spec.is_compatible_with(tensors[name]), spec
    return {name: plain(x.numpy().tolist()) for name, x in serve(**tensors).items()}
for line in sys.stdin:
    path, bodies = json.loads(line)
    model = tf.saved_model.load(path)
    print(json.dumps([answer(model, body) for body in bodies]), flush=True)
"""


@pytest.fixture(scope="module")
def ask():
    """Returns a function that sends REST requests to a SavedModel, in a process without t2tp."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def ask(path: Path, *bodies: dict) -> list[dict]:
            print(json.dumps([str(path), bodies]), file=server.stdin, flush=True)
            answers = server.stdout.readline()
            assert answers, "see the server's stderr"
            return json.loads(answers)

        yield ask
        server.stdin.close()


def export(run: Run, output: Path, **flags: object) -> Path:
    """Exports a model in another process, and checks that it prints no unexpected lines."""
    target = "tests.trainer.inference.test_exporter:exporter"
    with WarmProcess(target, run.flags(**flags), {}, output) as process:
        assert process.wait() == 0, process.err.read_text()
    said = process.err.read_text().splitlines()
    assert [line for line in said if not line.startswith("The vocabulary of ")] == []
    return Path(process.out.read_text().split()[-1])


@pytest.mark.slow
def test_a_text_model_answers_as_the_decoder(ask, tmp_path, capsys):
    run = train(tmp_path, PAIRS)
    path = export(run, tmp_path / "exporter", decode_hparams=OPTIONS)
    assert path.parent == run.output_dir / "export"
    (answer,) = ask(path, {"inputs": {"inputs": SOURCES}})
    wanted = run.decoded(tmp_path, SOURCES, OPTIONS)
    for row, scores, line in zip(answer["outputs"], answer["scores"], wanted, strict=True):
        fields = line.split("\t")
        assert row[: len(fields) // 2] == [f.replace("\\t", "\t") for f in fields[::2]]
        assert scores == pytest.approx([float(f) for f in fields[1::2]], abs=1e-4)
    assert exporter(["t2tp_exporter", *run.flags(max_input_length=99)]) == 2
    assert "context_length, 32" in capsys.readouterr().err


@pytest.mark.ci_only
@pytest.mark.slow
def test_a_language_model_of_a_mesh_answers_from_one_device(ask, tmp_path, capsys, monkeypatch):
    hparams = "mesh_shape=data:2;model:2,layout=batch:data;vocab:model;heads:model"
    run = train(tmp_path, TEXTS, hparams=hparams)
    options = "temperature=0.9,top_k=30,extra_length=8"
    flags = {"decode_hparams": f"{options},batch_size=2", "max_input_length": 16}
    path = export(run, tmp_path / "exporter", **flags)
    prompts = ["import codecs", "", "def "]
    ids = {"ids": [[7, 8, 0], [9, 0, 0]], "lengths": [2, 0]}
    shown = requests_of_the_pages()
    text, tokens, *answers = ask(
        path,
        {"inputs": {"inputs": prompts}},
        {"inputs": ids, "signature_name": "tokens"},
        *(request for request, _ in shown),
    )
    wanted = run.decoded(tmp_path, prompts, options)
    assert [each.translate({9: "\\t", 10: "\\n", 13: "\\r"}) for each in text["outputs"]] == wanted
    assert len(tokens["ids"]) == 2 and all(n <= 8 for row in tokens["lengths"] for n in row)
    assert len(shown) == 3
    for (_, response), answer in zip(shown, answers, strict=True):
        if response is not None:
            assert_alike(answer, response["outputs"])
    (tmp_path / "translator").symlink_to(run.output_dir)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    *_, code = blocks("coming_from_tensor2tensor.md", "python")
    exec(compile(code, "coming_from_tensor2tensor.md", "exec"), {})
    assert len(re.findall(r"^-\d+\.\d\d ", capsys.readouterr().out, re.MULTILINE)) == 2


def requests_of_the_pages() -> list[tuple[dict, dict | None]]:
    """Returns the bodies of the pages' requests to TensorFlow Serving, and the shown responses."""
    text = (DOCS / "decoding.md").read_text() + (DOCS / "coming_from_tensor2tensor.md").read_text()
    curls = re.findall(r"^curl -d '(.*?)' \S+:predict\n(.*)$", text, re.MULTILINE)
    bodies = re.findall(r'`(\{"inputs": .*?"signature_name".*?\})`', text)
    return [(json.loads(asked), json.loads(said)) for asked, said in curls] + [
        (json.loads(body), None) for body in bodies
    ]


def assert_alike(answer: object, shown: object) -> None:
    """Checks that two responses have the same names, types and numbers of rows."""
    assert type(answer) is type(shown)
    if isinstance(answer, dict):
        assert answer.keys() == shown.keys()
        for name in answer:
            assert_alike(answer[name], shown[name])
    elif isinstance(answer, list):
        for one, other in zip(answer, shown, strict=True):
            assert_alike(one, other)


@pytest.mark.slow
def test_a_classifier_answers_with_classes(ask, tmp_path):
    run = train(tmp_path, ("image_digits", "mlp", "mlp_tiny"))
    path = export(run, tmp_path / "exporter")
    images = [[[[0.1]] * 8] * 8, [[[0.9]] * 8] * 8, [[[0.5]] * 8] * 8]
    (answer,) = ask(path, {"inputs": {"inputs": images}})
    for row, number in zip(answer["probabilities"], answer["classes"], strict=True):
        assert sum(row) == pytest.approx(1, abs=1e-5) and row[number] == max(row)


def test_nothing_is_exported_of_a_directory_without_a_run(tmp_path, capsys):
    said = refused(capsys, "t2tp_exporter", output_dir=tmp_path, data_dir=tmp_path)
    assert "holds no run" in said
    assert not list(tmp_path.iterdir())
