"""Runs that train adapters of another run's weights: what they save, and how they find the base."""

import shutil

import numpy as np
import pytest

from t2tp.building.adapters import DOWN, UP
from t2tp.program.variables import Variables
from t2tp.trainer.run_dir.find_checkpoint import find
from tests.checkpoint.samples import values_in
from tests.trainer import (
    tiny_problem,  # noqa: F401 (registers problems)
    trained_runs,
)
from tests.trainer.command import call

LORA = (
    "lora_rank=2,lora_targets=[query,value,feed_forward],learning_rate_schedule=constant,"
    "learning_rate_constant=0.01"
)
SETTINGS = {
    "model": "transformer_lm",
    "hparams_set": "transformer_lm_test",
    "hparams": LORA,
    "schedule": "train",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Trains the base for two steps."""
    return trained_runs.train(tmp_path_factory.mktemp("base"), trained_runs.TEXTS, train_steps=2)


def train(base, output_dir, steps, **flags):
    """Trains adapters of the base; returns the exit code."""
    given = {"problem": base.problem, "warm_start_from": base.output_dir, **SETTINGS, **flags}
    return call("t2tp_trainer", *base.flags(output_dir=output_dir, train_steps=steps, **given))


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    """Trains adapters for four steps, and returns the directory of the run."""
    output_dir = tmp_path_factory.mktemp("tuned") / "run"
    assert train(base, output_dir, 4, save_checkpoints_steps=2) == 0
    return output_dir


def contents(output_dir) -> dict[str, np.ndarray]:
    return values_in(find(str(output_dir)))


@pytest.mark.slow
def test_a_checkpoint_has_the_adapters_and_refers_to_the_base(run, base):
    saved = find(str(run))
    names = {name for name in saved.shapes() if "/adam" not in name and "layer" in name}
    adapted = [f"attention/{n}" for n in "qv"] + [f"feed_forward/{n}" for n in ("input", "output")]
    assert {name for name in names if name.endswith((DOWN, UP))} == {
        f"layer_00/{name}{end}" for name in adapted for end in (DOWN, UP)
    }
    assert not names & set(find(str(base.output_dir)).shapes())
    said = saved.metadata["base"]
    assert said["path"] == str(find(str(base.output_dir)).path)
    assert said["save_id"] == find(str(base.output_dir)).save_id


@pytest.mark.slow
def test_a_resumed_run_finds_its_base_and_goes_on_as_if_never_stopped(run, base, tmp_path):
    """The run is resumed on another mesh, and without --warm_start_from."""
    resumed = tmp_path / "run"
    assert train(base, resumed, 2) == 0
    mesh = {"schedule": "train", "mesh_shape": "data:2;model:2"}
    no_warm_start = base.flags(output_dir=resumed, train_steps=4, **mesh)
    assert call("t2tp_trainer", *no_warm_start) == 0
    wanted, given = contents(run), contents(resumed)
    assert wanted.keys() == given.keys()
    for name, value in wanted.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(given[name], value, rtol=0, atol=1e-5 * scale, err_msg=name)
    assert all(np.abs(value).max() > 1e-3 for name, value in given.items() if name.endswith(UP))


def evaluated(capfd, base, output_dir) -> str:
    capfd.readouterr()
    assert call("t2tp_eval", *base.flags(output_dir=output_dir, eval_steps=1)) == 0
    return capfd.readouterr().out


@pytest.mark.slow
def test_evaluation_and_decoding_use_base_and_adapters(run, base, capfd, tmp_path):
    of_run, of_base = (evaluated(capfd, base, path) for path in (run, base.output_dir))
    assert of_run.split("loss")[1] != of_base.split("loss")[1]
    prompts, output = tmp_path / "prompts.txt", tmp_path / "out.txt"
    prompts.write_text("def\n")
    files = {"decode_from_file": prompts, "decode_to_file": output}
    assert base.decode(output_dir=run, decode_hparams="extra_length=4", **files) == 0
    averaged = tmp_path / "averaged"
    one = {"num_last_checkpoints": 1, "output_path": averaged}
    assert call("t2tp_avg_checkpoints", output_dir=run, **one) == 0
    assert evaluated(capfd, base, averaged).split("loss")[1] == of_run.split("loss")[1]


@pytest.mark.slow
def test_base_and_run_may_move_together_and_a_base_alone_must_be_named(run, base, capfd, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(base.output_dir, old / "base")
    assert train(base, old / "run", 1, warm_start_from=old / "base") == 0
    old.rename(new)
    assert evaluated(capfd, base, new / "run")
    (new / "base").rename(tmp_path / "elsewhere")
    capfd.readouterr()
    assert train(base, new / "run", 2, warm_start_from=new / "base") == 2
    said = capfd.readouterr().err
    assert "the weights in" in said and "which is not there: move that checkpoint back" in said
    assert train(base, new / "run", 2, warm_start_from=tmp_path / "elsewhere") == 0


@pytest.mark.slow
def test_adapters_can_be_trained_further_in_another_run(run, base, tmp_path):
    """The second run begins with the adapters of the first, and has the same base."""
    before = contents(run)
    unchanged = {"warm_start_from": run, "hparams": LORA.replace("0.01", "0")}
    assert train(base, tmp_path / "run", 1, **unchanged) == 0
    after = contents(tmp_path / "run")
    for name in before:
        if name.endswith((DOWN, UP)):
            np.testing.assert_array_equal(after[name], before[name])
    first, second = (find(str(path)).metadata["base"] for path in (run, tmp_path / "run"))
    assert first == second


REFUSED = [
    ({"hparams": f"{LORA},d_ff=64"}, "feed_forward/input is (16, 32) there and (16, 64) here"),
    ({"hparams": LORA.replace("query", "quer")}, "did you mean query"),
    ({"hparams": f"{LORA},lora_also_trained={'*q' * 60}!"}, "matches no variable"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_a_base_that_does_not_fit_is_refused(base, tmp_path, capfd, flags, message):
    assert train(base, tmp_path / "run", 1, **flags) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_training_without_a_base_makes_no_variable(base, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(Variables, "create_all", None)
    assert train(base, tmp_path / "run", 1, warm_start_from="") == 2
    assert "name the run or checkpoint that has them" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_layout_is_explained_without_a_base(base, tmp_path):
    assert train(base, tmp_path / "run", 1, warm_start_from="", explain_layout=True) == 0


def test_an_evaluation_without_a_base_says_that_there_is_no_checkpoint(base, tmp_path, capfd):
    flags = {"warm_start_from": None, "schedule": "evaluate"}
    assert train(base, tmp_path / "run", None, **flags) == 2
    assert "holds no finished checkpoint" in capfd.readouterr().err
