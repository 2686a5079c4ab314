"""Schedules that evaluate: early stopping, following another run, other splits."""

import shutil
import threading
import time

import pytest

from t2tp.checkpoint import all_steps, step_directory
from t2tp.trainer.eval_config import EarlyStopping
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from tests.trainer.hooks.events import read_scalars
from tests.trainer.tiny_experiment import experiment

# No improvement reaches 9 nats, so training stops two evaluations after the first one.
NEVER_BETTER = EarlyStopping(steps=4, delta=9.0)


def evaluated(directory, name: str = "eval") -> list[int]:
    return list(EvaluationRecord(directory / name).by_step())


@pytest.mark.slow
def test_training_stops_on_a_plateau_and_stays_stopped(tmp_path, data_dir):
    settings = {"train_steps": 30, "local_eval_frequency": 2, "early_stopping": NEVER_BETTER}
    metrics = experiment(tmp_path, data_dir, **settings).train_and_evaluate()
    assert evaluated(tmp_path) == [2, 4, 6]
    assert all_steps(tmp_path / "checkpoints") == [6]
    assert max(read_scalars(tmp_path)["loss"]) == 6
    again = experiment(tmp_path, data_dir, **settings).train_and_evaluate()
    assert again == pytest.approx(metrics)
    assert all_steps(tmp_path / "checkpoints") == [6]
    experiment(tmp_path, data_dir, train_steps=7).train_and_evaluate()  # Without early stopping.
    assert evaluated(tmp_path) == [2, 4, 6, 7]


@pytest.mark.slow
def test_each_split_has_its_directory(tmp_path, data_dir):
    experiment(tmp_path, data_dir, train_steps=2).train()
    run = experiment(tmp_path, data_dir, eval_split="test", eval_steps=1)
    on_test, on_train = run.evaluate(), run.evaluate_on_train_data()
    assert on_test != on_train
    assert EvaluationRecord(tmp_path / "eval_test").by_step() == {2: on_test}
    assert EvaluationRecord(tmp_path / "eval_train").by_step() == {2: on_train}
    assert read_scalars(tmp_path / "eval_train")["loss"][2] == pytest.approx(on_train["loss"])
    assert not (tmp_path / "eval").exists()


@pytest.mark.slow
def test_another_runs_checkpoints_are_evaluated_once_each_as_they_come(tmp_path, data_dir):
    experiment(tmp_path / "source", data_dir, train_steps=2).train()
    trained = experiment(tmp_path / "source", data_dir, train_steps=4)
    trained.train()
    source = tmp_path / "source/checkpoints"
    run = tmp_path / "run"

    def appear(step: int) -> None:
        target = step_directory(run / "checkpoints", step)
        shutil.copytree(step_directory(source, step), run / "new")
        target.parent.mkdir(parents=True, exist_ok=True)
        (run / "new").rename(target)

    def come_later() -> None:
        time.sleep(0.5)
        appear(2)
        time.sleep(1.0)
        appear(4)

    coming = threading.Thread(target=come_later)
    coming.start()
    follower = experiment(run, data_dir, train_steps=4, eval_timeout_mins=1.0)
    found = follower.continuous_eval()
    coming.join()
    assert list(found) == [2, 4]
    assert found[4] == pytest.approx(trained.evaluate())
    assert found[2]["loss"] != found[4]["loss"]
    # When it is started again, it has nothing to evaluate, and does not wait.
    assert experiment(run, data_dir, train_steps=4).continuous_eval() == found
    lines = (run / "eval/eval.jsonl").read_text().splitlines()
    assert len(lines) == 2


@pytest.mark.slow
def test_following_ends_when_nothing_comes(tmp_path, data_dir):
    nothing = experiment(tmp_path / "run", data_dir, eval_timeout_mins=0.01)
    with pytest.raises(FileNotFoundError, match=r"within 0.01 minutes"):
        nothing.continuous_eval()
    experiment(tmp_path / "run", data_dir, train_steps=1).train()
    one = experiment(tmp_path / "run", data_dir, train_steps=9, eval_timeout_mins=0.01)
    assert list(one.continuous_eval()) == [1]
