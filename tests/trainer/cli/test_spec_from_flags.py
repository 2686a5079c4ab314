"""What the flags, the saved run and the defaults make together; nothing is built."""

from __future__ import annotations

import pytest

from t2tp import registry
from t2tp.trainer.cli.flag_groups import parse
from t2tp.trainer.cli.programs import TRAINER
from t2tp.trainer.cli.spec_from_flags import spec_from_flags
from t2tp.trainer.errors import UsageError
from t2tp.trainer.run_dir import run_files
from tests.trainer.conftest import PROBLEM


@pytest.fixture
def resolve(tmp_path, data_dir):
    """Flags by name -> `RunSpec`."""
    new = {"problem": PROBLEM, "model": "transformer_lm", "hparams_set": "transformer_lm_test"}

    def resolve(new=new, **flags):
        given = {**new, "data_dir": data_dir, "output_dir": tmp_path / "run", **flags}
        command_line = [f"--{name}={value}" for name, value in given.items()]
        return spec_from_flags(parse(TRAINER.groups, ["t2tp_trainer", *command_line])[0])

    return resolve


@pytest.mark.parametrize(
    ("flags", "hparams"),
    [
        (
            {"mesh_shape": "model:2", "layout": "d_ff:model"},
            {"mesh_shape": "model:2", "layout": "d_ff:model"},
        ),
        ({"mesh_shape": "model:2", "hparams": "mesh_shape=model:2"}, {"mesh_shape": "model:2"}),
        (
            {"worker_gpu": 2, "precision": "bfloat16"},
            {"mesh_shape": "data:2", "activation_dtype": "bfloat16"},
        ),
        ({"on_nonfinite": "skip"}, {"skip_nonfinite_steps": True}),
    ],
)
def test_some_flags_are_short_for_hparams(resolve, flags, hparams):
    found = resolve(**flags).hparams
    assert {name: getattr(found, name) for name in hparams} == hparams


def test_a_trial_is_drawn_into_the_set_of_another_run(resolve, trained, tmp_path):
    saved, other = trained / "hparams.json", tmp_path / "other"
    new = {"hparams_set": saved, "hparams_range": "basic1", "trial": 4, "output_dir": other}
    spec = resolve(hparams="weight_decay=0.5", **new)
    drawn = registry.ranged_hparams("basic1").sample_trial(4)
    assert spec.hparams.learning_rate_constant == drawn["learning_rate_constant"]
    assert (spec.hparams.d_ff, spec.hparams.weight_decay) == (64, 0.5)
    run_files.write(str(other), spec.hparams, {**spec.flags, "hparams_set": str(saved)})
    saved.unlink()  # The run knows its hparams.
    assert resolve(new={}, output_dir=other).hparams == spec.hparams


def test_what_a_new_run_needs_is_asked_for(resolve):
    with pytest.raises(UsageError, match="--model is missing, and .*run holds no run to"):
        resolve(new={})
