"""Files for LiteRT, run by its interpreter."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf, registry
from t2tp.program.program import Feature, Program
from t2tp.trainer.cli.programs import t2tp_exporter
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inference.exporter import write_litert
from tests.page_blocks import blocks
from tests.trainer.trained_runs import PAIRS, TEXTS, Run, train

interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install -e '.[litert]'")


def _export(run: Run, capsys, **flags: object) -> Path:
    capsys.readouterr()
    assert t2tp_exporter(["t2tp_exporter", *run.flags(**flags)]) == 0
    return Path(capsys.readouterr().out.split()[-1])


def _runner(path: Path):
    return interpreter.Interpreter(str(path)).get_signature_runner("serving_default")


RUNS = [(PAIRS, ["two one", "sechs acht", "x"]), (TEXTS, ["import ", "", "de"])]


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize(("names", "lines"), RUNS)
def test_a_text_model_decodes_as_the_decoder(tmp_path, capsys, monkeypatch, names, lines):
    run = train(tmp_path, names)
    options = "beam_size=1,extra_length=6"
    decoded = run.decoded(tmp_path, lines, options)
    path = _export(run, capsys, format="litert", max_input_length=16, decode_hparams=options)
    decode, codec = _runner(path), registry.problem(run.problem)().codec(run.data_dir)
    for line, expected in zip(lines, decoded, strict=True):
        tokens = codec.encode(line) + [codec.end_of_document] * (names == PAIRS)
        ids = np.zeros([1, 16], np.int32)
        ids[0, : len(tokens)] = tokens
        result = decode(ids=ids, lengths=np.array([len(tokens)], np.int32))
        text = codec.decode(result["ids"][0, : result["lengths"][0]])
        assert text.translate({9: "\\t", 10: "\\n", 13: "\\r"}) == expected
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("litert.md", "python")
    exec(compile(code, "litert.md", "exec"), {})
    assert re.fullmatch(r"\[[\d\s]*\]\n", capsys.readouterr().out)


IMAGE_MODELS = [
    ("vit", "vit_tiny", "d_model=128,d_ff=512"),
    ("mtf_resnet", "mtf_resnet_tiny", "mesh_shape="),
]


@pytest.mark.slow
@pytest.mark.ci_only
@pytest.mark.parametrize(("model", "hparams_set", "hparams"), IMAGE_MODELS)
def test_an_image_model_has_the_saved_models_classes(tmp_path, capsys, model, hparams_set, hparams):
    pytest.importorskip("sklearn", reason="pip install -e '.[digits]'")
    names = ("image_digits", model, hparams_set)
    run = train(tmp_path, names, hparams=hparams, train_steps=100)
    rows = {"decode_hparams": "batch_size=10"}
    saved = tf.saved_model.load(str(_export(run, capsys, **rows))).signatures["serving_default"]
    paths = [_export(run, capsys, format="litert", int8=int8, **rows) for int8 in (False, True)]
    source = registry.problem("image_digits")().examples(run.data_dir, "test", 64)
    images = np.asarray(source.read("inputs", np.arange(250), (slice(None),) * 3))
    expected = saved(inputs=tf.constant(images))
    found = []
    for path in paths:
        classify = _runner(path)
        parts = [classify(inputs=images[begin : begin + 10]) for begin in range(0, 250, 10)]
        found.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    assert (found[0]["classes"] == expected["classes"].numpy()).all()
    difference = found[0]["probabilities"] - expected["probabilities"].numpy()
    assert np.abs(difference).max() < 1e-5
    assert np.mean(found[0]["classes"] == found[1]["classes"]) >= 0.99
    exact, quantized = (path.stat().st_size for path in paths)
    assert quantized <= 0.30 * exact


def test_an_operation_that_litert_lacks_is_named(tmp_path):
    """No file is written."""

    def step(mesh, features):
        return {"y": mtf.slicewise(tf.math.erfinv, [features["x"]])}

    program = Program(step, {"x": Feature("rows:2", tf.float32)}, xla=False)
    path = tmp_path / "model.tflite"
    with pytest.raises(UsageError, match=r"LiteRT cannot run this model: it does not have Erfinv;"):
        x = tf.TensorSpec([2], tf.float32)
        write_litert(program, path, lambda step: lambda x: step.run({"x": x}), x=x)
    assert not path.exists()
