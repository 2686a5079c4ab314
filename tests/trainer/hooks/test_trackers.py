"""--tracker, with stand-ins of the packages that only record their calls."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from t2tp.checkpoint import all_steps
from t2tp.trainer.hooks.trackers import check_tracker


class Wandb(ModuleType):
    """A stand-in for the package wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = SimpleNamespace(name="wandb")
        self.began, self.logged = [], []

    def init(self, **settings):
        self.began.append(settings)
        return SimpleNamespace(log=lambda scalars, step: self.logged.append((step, scalars)))


class Mlflow(ModuleType):
    """A stand-in for the package mlflow."""

    def __init__(self):
        super().__init__("mlflow")
        self.__spec__ = SimpleNamespace(name="mlflow")
        self.began, self.params, self.logged = [], {}, []

    def set_experiment(self, name):
        self.experiment = name

    def start_run(self, run_name=None, run_id=None):
        self.began.append((run_name, run_id))
        return SimpleNamespace(info=SimpleNamespace(run_id="a1"))

    def log_params(self, params):
        self.params = params

    def log_metrics(self, metrics, step):
        self.logged.append((step, metrics))


@pytest.mark.parametrize("kind", [Wandb, Mlflow])
def test_reports_and_evaluations_are_sent_and_a_run_goes_on(trainer, tmp_path, monkeypatch, kind):
    module = kind()
    name = module.__name__
    monkeypatch.setitem(sys.modules, name, module)
    assert trainer(tracker=f"{name}:mine", train_steps=2) == 0
    steps = [step for step, scalars in module.logged if "loss" in scalars]
    assert steps == [1, 2]
    assert [step for step, scalars in module.logged if "eval/loss" in scalars] == [2]
    assert trainer(tracker=f"{name}:mine", train_steps=3, schedule="train") == 0
    assert module.logged[-1][0] == 3
    first, second = module.began
    if name == "wandb":
        assert (first["project"], first["name"], first["resume"]) == ("mine", "run", "allow")
        assert first["id"] == second["id"]
        assert first["config"]["d_model"] == 16
    else:
        assert (module.experiment, first, second) == ("mine", ("run", None), (None, "a1"))
        assert module.params["d_model"] == 16
        assert json.loads((tmp_path / "run/tracker.json").read_text()) == {"mlflow_run_id": "a1"}


@pytest.mark.parametrize("kind", [Wandb, Mlflow])
def test_a_tracker_that_fails_in_training_is_a_warning(trainer, tmp_path, monkeypatch, capfd, kind):
    module = kind()
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def fails(*args, **kwargs):
        raise ConnectionError("no route\nto the server")

    monkeypatch.setattr(module, "logged", SimpleNamespace(append=fails))
    assert trainer(tracker=module.__name__, train_steps=3, schedule="train") == 0
    said = capfd.readouterr().err
    warning = "step 1 was not sent, and training goes on: ConnectionError: no route to the server"
    assert said.count("was not sent") == said.count(warning) == 1
    assert "Traceback" not in said
    assert all_steps(tmp_path / "run/checkpoints") == [3]


def test_a_tracker_that_does_not_start_is_one_sentence(trainer, tmp_path, monkeypatch, capfd):
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(module, "began", None)  # As without an API key: `init` raises.
    assert trainer(tracker="wandb:mine", schedule="train") == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("t2tp_trainer: tracker=wandb:mine: wandb does not start: AttributeError")
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_a_tracker_that_is_not_there_is_one_sentence(trainer, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert trainer(tracker="wandb") == 2
    said = capfd.readouterr().err
    assert said.endswith("the package wandb is not installed: pip install wandb\n")
    assert trainer(tracker="wandbb") == 2
    assert "did you mean wandb?" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="not installed"):
        check_tracker("mlflow")
