"""Training on users' problems, buckets and mixtures; unsuitable models and data are refused."""

from pathlib import Path

import pytest

from t2tp import problems, registry
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.trainer.run_dir import run_files
from tests.files import files_in
from tests.trainer.command import call
from tests.trainer.conftest import PROBLEM
from tests.trainer.hooks.events import read_scalars
from tests.trainer.tiny_pairs import TranslateUpperCase

OTHER_DATA = "are not those that the run in"
NUMERALS = {
    "t2t_usr_dir": Path(__file__).parents[3] / "examples/my_problems",
    "problem": "roman_numerals",
    "generate_data": True,
    "schedule": "train",
}


# A model that reads inputs.
OF_PAIRS = {"model": "transformer", "hparams_set": "transformer_tiny"}


@pytest.mark.slow
def test_a_users_own_problem_is_made_and_trained_on(trainer, tmp_path):
    """The problem is in a user's directory; flags override its changes of hparams."""
    flags = {**NUMERALS, **OF_PAIRS, "data_dir": tmp_path / "data", "train_steps": 2}
    assert trainer(**flags) == 0
    assert run_files.read(tmp_path / "run").hparams.max_length == 16  # 32 in the set
    assert trainer(**flags, output_dir=tmp_path / "other", hparams="max_length=24") == 0
    assert run_files.read(tmp_path / "other").hparams.max_length == 24


@pytest.mark.ci_only
@pytest.mark.slow
def test_pairs_in_buckets_of_length_train(trainer, tmp_path, monkeypatch):
    """Batches have 4 x 32 or 8 x 16 tokens, and each of these shapes has its own program."""
    name, options = "algorithmic_reverse_binary40", "arrangement=bucketed"
    counts = {"train": 500, "validation": 50, "test": 50}
    monkeypatch.setattr(AlgorithmicProblem, "sample_counts", counts)
    flags = {"problem": name, "problem_options": options, "schedule": "train", "train_steps": 8}
    flags |= {"data_dir": tmp_path / "data", "generate_data": True, "mesh_shape": "data:2"}
    hparams = "batch_size=4,max_length=32"
    assert trainer(**flags, **OF_PAIRS, hparams=hparams, log_step_count_steps=8) == 0
    shown = read_scalars(tmp_path / "run")
    assert shown["loss"].keys() == {8}
    assert "examples_per_second" not in shown
    stream = problems.find(name, options).stream(tmp_path / "data", "train", 4, 32, seed=0)
    assert {stream[step]["targets"].shape for step in range(8)} == {(4, 32), (8, 16)}


def test_a_mixture_trains_and_is_evaluated(trainer, data_dir, tmp_path):
    assert trainer(problem=f"mixture:{PROBLEM}=1", data_dir=data_dir) == 0
    assert run_files.read(tmp_path / "run").flags["problem"] == f"mixture:{PROBLEM}=1"


@registry.register_problem
class TranslateWithF1(TranslateUpperCase):
    """Asks for a metric whose sums a language model does not count."""

    metric_names = (*TranslateUpperCase.metric_names, "f1")


LACKING = [
    ("translate_with_f1", "transformer", "f1"),
    (PROBLEM, "transformer_encoder", "bits_per_byte"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "model", "metric"), LACKING)
def test_metrics_that_a_model_lacks_are_named(trainer, tmp_path, capfd, problem, model, metric):
    flags = {"problem": problem, "model": model, "hparams_set": f"{model}_tiny", "train_steps": 2}
    assert trainer(**flags, data_dir=tmp_path / "data", generate_data=True) == 0
    assert f"not evaluated: {metric}" in capfd.readouterr().err
    shown = read_scalars(tmp_path / "run" / "eval")
    assert "accuracy" in shown and metric not in shown


def test_a_model_that_takes_other_features_is_refused(trainer, tmp_path, capfd):
    flags = {"problem": "image_digits", "data_dir": tmp_path / "data", "generate_data": True}
    assert trainer(**flags) == 2
    assert "TransformerLm takes targets, targets_segmentation" in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(trainer, tmp_path, capfd):
    flags = {**NUMERALS, **OF_PAIRS, "data_dir": tmp_path / "data"}
    assert trainer(**flags, train_steps=2) == 0
    made_again = problems.find("roman_numerals")
    made_again.samples = lambda split, directory, tmp_dir: [{"inputs": "1", "targets": "I"}] * 50
    made_again.prepare(tmp_path / "other")
    flags["data_dir"] = tmp_path / "other"
    capfd.readouterr()
    before = files_in(tmp_path / "run")
    assert trainer(**flags, train_steps=4) == 2
    assert OTHER_DATA in capfd.readouterr().err
    assert files_in(tmp_path / "run") == before
    # Schedules that only read the run refuse, too: other vocabularies give meaningless figures.
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for schedule in ("evaluate", "evaluate_on_train_data", "continuous_eval"):
        assert trainer(**flags | {"schedule": schedule}) == 2
        assert OTHER_DATA in capfd.readouterr().err
    named = {"schedule": "evaluate", "output_dir": elsewhere, "checkpoint_path": run}
    assert trainer(**flags | named) == 2
    assert OTHER_DATA in capfd.readouterr().err
    reading = {name: flags[name] for name in ("data_dir", "t2t_usr_dir")} | {"output_dir": run}
    splits = {"t2tp_eval": None, "t2tp_decoder": "validation", "t2tp_exporter": None}
    for program, split in splits.items():
        assert call(program, **reading, split=split) == 2
        assert OTHER_DATA in capfd.readouterr().err.splitlines()[-1]
    assert not elsewhere.exists() and not (run / "export").exists()
