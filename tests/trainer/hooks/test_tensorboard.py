"""Data for TensorBoard that are not scalars."""

import re
from pathlib import Path

import pytest
from tensorboard.plugins.hparams import plugin_data_pb2

from t2tp.trainer.cli.programs import t2tp_trainer as main
from t2tp.trainer.hooks.summaries import SummaryWriter
from tests.trainer import small_run, tiny_pairs  # noqa: F401 (registers problems)
from tests.trainer.hooks.events import read, read_texts
from tests.trainer.trained_runs import PAIRS, train, train_images


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory) -> Path:
    """Trains a run on four devices, which writes all kinds of data; returns its directory."""
    directory = tmp_path_factory.mktemp("tensorboard") / "run"
    watched = {"histogram_steps": 3, "profile_steps": "4:5", "eval_samples": 2}
    evaluated = {"schedule": "train_and_evaluate", "eval_steps": 2, "local_eval_frequency": 3}
    hparams = {"hparams": "learning_rate_constant=0.01", "train_steps": 6}
    given = small_run.flags(directory, data_dir, **watched, **evaluated, **hparams)
    assert main(["t2tp_trainer", *given]) == 0
    return directory


@pytest.mark.slow
def test_histograms_count_every_value_of_each_variable(run):
    counts = {
        (event.name, event.step): event.value[:, 2].sum()
        for event in read(run)
        if event.plugin == "histograms"
    }
    assert {step for _, step in counts} == {3, 6}
    assert counts["layer_00/feed_forward/input", 6] == 16 * 32
    assert counts["embedding", 6] == 512 * 16


def test_the_hparams_plugin_knows_the_hparams(run):
    (said,) = [event.data for event in read(run) if event.plugin == "hparams"]
    data = plugin_data_pb2.HParamsPluginData.FromString(said)
    hparams = data.session_start_info.hparams
    assert hparams["learning_rate_constant"].number_value == 0.01
    assert hparams["d_ff"].number_value == 32
    assert hparams["mesh_shape"].string_value == "data:2;model:2"


def test_runs_of_one_name_in_different_directories_are_two(tmp_path, monkeypatch):
    names = set()
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        monkeypatch.chdir(directory)
        writer = SummaryWriter("run")
        writer.hparams({"d_ff": 32})
        writer.close()
        (said,) = [event.data for event in read(directory / "run")]
        names.add(plugin_data_pb2.HParamsPluginData.FromString(said).session_start_info.group_name)
    assert len(names) == 2


def test_the_profile_is_where_tensorboard_looks(run):
    (trace,) = run.glob("plugins/profile/*/*.xplane.pb")
    assert b"Einsum" in trace.read_bytes() or b"MatMul" in trace.read_bytes()


def test_a_language_model_continues_the_first_examples_at_each_evaluation(run, data_dir):
    texts = read_texts(run / "eval")
    assert {("samples", 3), ("samples", 6)} <= texts.keys()
    header, _, *rows = texts["samples", 6].splitlines()
    assert header == "| prompt | text | continuation |"
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\\\) \| ", row)) == 2 for row in rows)


@pytest.mark.slow
def test_a_translation_is_shown_beside_inputs_and_targets(tmp_path):
    flags = {"train_steps": 1, "schedule": "train_and_evaluate", "eval_samples": 2}
    trained = train(tmp_path, PAIRS, **flags)
    # An untrained model may write any character, also those at which splitlines() splits.
    header, _, *rows = read_texts(trained.output_dir / "eval")["samples", 1].split("\n")
    assert header == "| inputs | targets | output |"
    for row in rows:
        inputs, targets, _ = row.strip("| ").split(" | ", 2)
        assert inputs.upper() == targets


@pytest.mark.slow
def test_images_are_shown_beside_those_of_the_split(tmp_path):
    flags = {"train_steps": 1, "schedule": "train_and_evaluate", "eval_samples": 2}
    trained = train_images(tmp_path, eval_steps=1, **flags)
    events = [e for e in read(trained.output_dir / "eval") if e.plugin == "images"]
    assert {event.name for event in events} == {"targets", "samples"}
    for event in events:  # Width, height, and a PNG each.
        assert len(event.value) == 2 + 2
        assert all(image.startswith(b"\x89PNG") for image in event.value[2:])


def test_what_cannot_be_decoded_is_refused_before_training(trainer, tmp_path, capfd, data_dir):
    wrong = {"problem": "image_digits", "model": "mlp", "hparams_set": "mlp_tiny"}
    assert trainer(eval_samples=2, data_dir=tmp_path, generate_data=True, **wrong) == 2
    assert "the model mlp does not generate tokens" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
