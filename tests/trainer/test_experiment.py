"""A run of a registered model on a registered problem, without flags."""

import math
import re

import numpy as np
import pytest

from t2tp.checkpoint import all_steps
from t2tp.checkpoint.variables import CheckpointMismatchError
from t2tp.registry import UnknownNameError
from t2tp.trainer.processes import multiprocess
from t2tp.trainer.run_dir import run_files
from tests.page_blocks import blocks
from tests.trainer.conftest import PROBLEM
from tests.trainer.hooks.events import read_scalars
from tests.trainer.tiny_experiment import experiment


def test_it_trains_and_evaluates_when_it_is_time(tmp_path, data_dir):
    run = experiment(tmp_path, data_dir, "mesh_shape=data:2;model:2", local_eval_frequency=4)
    metrics = run.train_and_evaluate()
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert set(metrics) > {"accuracy", "bits_per_byte", "neg_log_perplexity"}
    trained, evaluated = read_scalars(tmp_path), read_scalars(tmp_path / "eval")
    assert {"loss", "learning_rate", "gradient_norm", "tokens_per_second"} < set(trained)
    assert trained["learning_rate"][1] == pytest.approx(3e-3)  # One of six steps is the warm-up.
    assert set(evaluated) == set(metrics)
    assert sorted(evaluated["loss"]) == [4, 6]
    assert evaluated["loss"][6] == pytest.approx(metrics["loss"])
    assert all_steps(tmp_path / "checkpoints") == [6]


@pytest.mark.slow
def test_the_seed_decides_on_the_order_of_the_data_and_on_samples(tmp_path, data_dir):
    runs = [experiment(tmp_path, data_dir, train_steps=1, random_seed=seed) for seed in (0, 0, 1)]
    first, again, other = (np.asarray(run._train_inputs.stream[0]["targets"]) for run in runs)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    runs[0].train()
    first, again, other = (run.predict("def ", 8) for run in runs)
    assert first == again != other


def test_building_and_describing_write_nothing(tmp_path, data_dir):
    run = experiment(tmp_path / "run", data_dir, "mesh_shape=data:2;model:2")
    run.build("train_and_evaluate")
    said = run.describe()
    assert "mesh data:2;model:2, layout batch:data;heads:model" in said
    assert re.search(r"^processor 3: .*CPU:3$", said, re.MULTILINE)
    learned = 512 * 16 + 32 * 16 + 4 * 16 * 32 + 2 * 16 * 32 + 3 * 16
    assert f"{learned:,} parameters, {2 * learned:,} optimizer state values" in said
    assert not (tmp_path / "run").exists()


def test_a_sample_continues_the_prompt(tmp_path, data_dir):
    run = experiment(tmp_path, data_dir, "mesh_shape=data:2;model:2", train_steps=2)
    run.train()
    for prompt in ("", "def "):
        sampled = run.predict(prompt, 5)
        assert sampled == experiment(tmp_path, data_dir).predict(prompt, 5)
        assert len(sampled) <= 5 * 32
    assert run.predict("def ", 0) == ""
    with pytest.raises(ValueError, match="context_length is 32"):
        run.predict("import codecs\n" * 20)


REFUSED = [
    ({"problem": "languagemodel_encoding"}, UnknownNameError, f"did you mean {PROBLEM}"),
    ({"train_steps": -1}, ValueError, "train_steps is -1"),
    ({"eval_steps": -2}, ValueError, "eval_steps is -2"),
]


@pytest.mark.parametrize(("settings", "error", "says"), REFUSED)
def test_what_cannot_be_is_refused(tmp_path, data_dir, settings, error, says):
    with pytest.raises(error, match=says):
        experiment(tmp_path / "run", data_dir, **settings)
    assert not (tmp_path / "run").exists()


def test_directories_may_be_other_ones_in_each_process(tmp_path, data_dir, monkeypatch):
    compared = {}
    monkeypatch.setattr(multiprocess, "check_same", lambda cluster, what: compared.update(what))
    flags = {name: str(tmp_path) for name in ("data_dir", "tmp_dir", "t2t_usr_dir", "output_dir")}
    experiment(tmp_path, data_dir, flags=flags).build("train")
    assert compared["train_steps"] == 6 and f"data of {PROBLEM}" in compared
    assert not flags.keys() & compared.keys()


def test_a_run_keeps_its_shape(tmp_path, data_dir):
    experiment(tmp_path, data_dir, train_steps=1).train()
    before = (tmp_path / "run.yaml").read_bytes()
    with pytest.raises(CheckpointMismatchError) as error:
        experiment(tmp_path, data_dir, "d_ff=64,learning_rate_constant=0.1").train()
    assert "layer_00/feed_forward/input is (16, 32) in the checkpoint" in str(error.value)
    assert "d_ff=64 (saved: 32)" in str(error.value)
    assert (tmp_path / "run.yaml").read_bytes() == before
    experiment(tmp_path, data_dir, "learning_rate_constant=0.1", train_steps=2).train()
    assert run_files.read(tmp_path).hparams.learning_rate_constant == 0.1


def test_the_documented_lines_of_python_work(tmp_path, monkeypatch, data_dir):
    (code,) = [block for block in blocks("trainer.md", "python") if "Experiment(" in block]
    assert len(code.strip().splitlines()) <= 18
    monkeypatch.chdir(tmp_path)
    settings = {"languagemodel_python_stdlib": PROBLEM, "train_steps=1000": "train_steps=2"}
    settings["transformer_lm_tiny"] = "transformer_lm_test"
    for documented, tiny in settings.items():
        assert documented in code
        code = code.replace(documented, tiny)
    namespace: dict = {}
    exec(code, namespace)
    assert namespace["metrics"]["bits_per_byte"] > 0
