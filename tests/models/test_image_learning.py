"""Image models learn scikit-learn's digits on a mesh that splits the images."""

import pytest

from t2tp import hparams as _hparams  # noqa: F401  (it registers the sets)
from t2tp import models as _models  # noqa: F401
from t2tp import registry
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_spec import RunSpec


def figures_of(tmp_path, model, problem, hparams_set, changes, steps):
    registry.problem(problem)().prepare(tmp_path / "data")
    hparams = registry.hparams(hparams_set)
    hparams.batch_size = 64
    hparams.parse(changes)
    config = RunConfig(str(tmp_path / "run"))
    experiment = Experiment(
        RunSpec.resolve(
            model, problem, hparams, config, data_dir=tmp_path / "data", train_steps=steps
        )
    )
    experiment.train()
    return experiment.evaluate()


@pytest.mark.slow
@pytest.mark.ci_only  # test_examples.py trains smaller models.
def test_a_resnet_names_digits(tmp_path):
    """benchmarks/learning trains for more steps."""
    changes = "mesh_shape=rows:2,learning_rate_warmup_steps=10"
    figures = figures_of(tmp_path, "mtf_resnet", "image_digits", "mtf_resnet_digits", changes, 80)
    assert figures["accuracy"] > 0.9
