"""A short experiment: the tiny model on the tiny problem."""

from dataclasses import fields, replace
from pathlib import Path

from t2tp import registry
from t2tp.decoding import DecodeOptions
from t2tp.trainer.eval_config import EvalConfig
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec
from tests.trainer.conftest import PROBLEM


def experiment(directory: Path, data_dir: Path, changes: str = "", **settings) -> Experiment:
    """Returns an experiment that trains the tiny model for six steps."""
    hparams = registry.hparams("transformer_lm_test")
    hparams.parse(changes)
    seed = settings.pop("random_seed", 0)
    of_config = {f.name: settings.pop(f.name) for f in fields(RunConfig) if f.name in settings}
    config = RunConfig(str(directory), random_seed=seed, log_step_count_steps=1, **of_config)
    of_run = {"model": "transformer_lm", "problem": PROBLEM, "train_steps": 6}
    of_run |= {name: settings.pop(name) for name in of_run if name in settings}
    flags = settings.pop("flags", {})
    evaluation = {"eval_steps": 2}
    evaluation |= {f.name: settings.pop(f.name) for f in fields(EvalConfig) if f.name in settings}
    spec = RunSpec.resolve(
        hparams=hparams,
        config=config,
        data_dir=data_dir,
        evaluation=EvalConfig(**evaluation),
        **of_run,
    )
    spec = replace(spec, flags=flags)
    sampling = DecodeOptions(temperature=1.0, batch_size=1)
    return Experiment(spec, **{"decode_options": sampling, **settings})
