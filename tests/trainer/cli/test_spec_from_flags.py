"""The settings that flags, a saved run and defaults determine together; nothing is built."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from t2tp import registry
from t2tp.trainer import run_yaml
from t2tp.trainer.cli import programs
from t2tp.trainer.cli.flag_groups import parse
from t2tp.trainer.cli.spec_from_flags import spec_from_flags
from t2tp.trainer.errors import UsageError
from t2tp.trainer.run_dir import run_files
from tests.trainer.command import flags_of
from tests.trainer.conftest import NEW, set_flags

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def resolve(tmp_path, data_dir):
    """Returns a function that makes a `RunSpec` of flags by name."""

    def resolve(new=NEW, **flags):
        given = {**new, "data_dir": data_dir, "output_dir": tmp_path / "run", **flags}
        command_line = ["t2tp_trainer", *flags_of(given)]
        return spec_from_flags(parse(programs.PROGRAMS["t2tp_trainer"].groups, command_line)[0])

    return resolve


CASES = [
    ({"mesh_shape": "model:2"}, {"mesh_shape": "model:2"}),
    ({"layout": "d_ff:model"}, {"layout": "d_ff:model"}),
    ({"mesh_shape": "model:2", "hparams": "mesh_shape=model:2"}, {"mesh_shape": "model:2"}),
    ({"worker_gpu": 2}, {"mesh_shape": "data:2"}),
    ({"precision": "bfloat16"}, {"activation_dtype": "bfloat16"}),
    ({"on_nonfinite": "skip"}, {"on_nonfinite": "skip"}),
]


@pytest.mark.parametrize(("flags", "hparams"), CASES)
def test_some_flags_are_short_for_hparams(resolve, flags, hparams):
    found = resolve(**flags).hparams
    assert {name: getattr(found, name) for name in hparams} == hparams


def test_a_trial_is_drawn_into_the_set_of_another_run(resolve, trained, tmp_path):
    saved, other = trained / "run.yaml", tmp_path / "other"
    new = {"hparams_set": saved, "hparams_range": "basic1", "trial": 4, "output_dir": other}
    spec = resolve(hparams="weight_decay=0.5", **new)
    drawn = registry.ranged_hparams("basic1").sample_trial(4)
    assert spec.hparams.learning_rate_constant == drawn["learning_rate_constant"]
    assert (spec.hparams.d_ff, spec.hparams.weight_decay) == (64, 0.5)
    run_files.write(str(other), spec.hparams, {**spec.flags, "hparams_set": str(saved)})
    saved.unlink()  # The run knows its hparams.
    assert resolve(new={}, output_dir=other).hparams == spec.hparams


def forget(run, *names):
    """Removes hparams from a run, as if it were older than these hyperparameters."""
    settings = run_yaml.read(run / "run.yaml")
    for name in names:
        del settings.hparams[name]
    run_yaml.write(run / "run.yaml", settings)


def test_an_older_run_has_the_defaults_of_what_is_declared_since(resolve, trained, tmp_path):
    forget(trained, "lora_rank", "lora_targets", "zero_stage")
    other = {"hparams_set": trained / "run.yaml", "output_dir": tmp_path / "other"}
    found = resolve(**other).hparams
    assert (found.d_ff, found.lora_rank, found.zero_stage) == (64, 0, 0)
    assert resolve(hparams="lora_rank=8", **other).hparams.lora_rank == 8
    with pytest.raises(UsageError, match=r"lacks .*which transformer_moe reads"):
        resolve(model="transformer_moe", **other)
    # A run that was started from Python, or converted, has hparams but no set.
    set_flags(trained, hparams_set="")
    resumed = resolve(new={}, hparams="zero_stage=1").hparams
    assert (resumed.d_ff, resumed.lora_targets, resumed.zero_stage) == (64, ["query", "value"], 1)


def test_a_file_of_hparams_that_says_no_model_is_not_completed(resolve, trained, tmp_path):
    forget(trained, "zero_stage")
    alone = tmp_path / "alone.yaml"
    run_yaml.write(alone, replace(run_yaml.read(trained / "run.yaml"), names={}))
    with pytest.raises(UsageError, match=r"lacks zero_stage, which transformer_lm reads"):
        resolve(hparams_set=alone, output_dir=tmp_path / "other")


def test_what_a_new_run_needs_is_asked_for(resolve):
    with pytest.raises(UsageError, match="--model is missing, and .*run holds no run to"):
        resolve(new={})


# Flags that a user may give when a run starts, and omit whenever it is resumed.
KEPT = {
    **NEW,
    "problem_options": "vocab_size=512",
    "train_steps": 7,
    "random_seed": 5,
    "t2t_usr_dir": str(EXAMPLES / "my_problems"),
}


@pytest.mark.parametrize("has_user_dir", [True, False])
def test_a_run_keeps_its_flags_through_any_resumes(resolve, tmp_path, has_user_dir):
    draw = random.Random(0)
    given = {name: value for name, value in KEPT.items() if has_user_dir or "usr" not in name}
    always = {name: given[name] for name in ("t2t_usr_dir",) if name in given}
    for resume in range(8):
        omitted = draw.sample(sorted(given), draw.randint(0, len(given))) if resume else []
        flags = {name: value for name, value in given.items() if name not in omitted}
        spec = resolve(new={}, **{**flags, **always})
        assert not spec.changes
        run_files.write(str(tmp_path / "run"), spec.hparams, spec.flags)
        saved = run_files.read_flags(tmp_path / "run")
        assert {name: saved[name] for name in given} == given


@pytest.mark.parametrize("inside", [True, False])
def test_opening_a_run_executes_no_code(resolve, tmp_path, trained, inside):
    code = (trained if inside else tmp_path) / "unasked"
    code.mkdir()
    (code / "__init__.py").write_text("raise SystemExit('executed')")
    set_flags(trained, t2t_usr_dir=str(code))
    with pytest.raises(UsageError, match="t2t_usr_dir=.*unasked"):
        resolve(new={}, output_dir=trained)
    given = [f"--output_dir={trained}", f"--data_dir={tmp_path}"]
    for program, more in (
        ("t2tp_trainer", ["--schedule=evaluate"]),
        ("t2tp_trainer", ["--print_hparams"]),
        ("t2tp_eval", []),
        ("t2tp_decoder", []),
        ("t2tp_exporter", []),
    ):
        assert getattr(programs, program)([program, *given, *more]) == 2


def test_an_empty_digest_does_not_switch_the_check_of_the_data_off(trained, resolve):
    set_flags(trained, data_digest="")
    with pytest.raises(run_files.RunFileError, match="data_digest"):
        resolve(new={}, output_dir=trained)
