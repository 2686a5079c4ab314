"""Every model can be built with every hparams set, or one sentence says why not."""

from unittest import mock

import pytest

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hparams_fit import check_fits, read_set
from t2tp.trainer.planning import request
from t2tp.trainer.run_dir import run_files
from tests import test_hparams_sets

MODELS = [n for n in registry.list_models() if test_hparams_sets.ours(registry.model(n))]
SETS = {name: registry.hparams(name) for name in test_hparams_sets.SETS}
# model -> a small set of its kind
SMALL = {model: f"{model}_tiny" for model in MODELS}


def outcome(model: str, set_name: str) -> str:
    """Returns "fits", the warning, or the refusal."""
    try:
        with mock.patch("absl.logging.warning") as warning:
            check_fits(model, set_name, SETS[set_name])
    except UsageError as error:
        return f"refused: {error}"
    return warning.call_args.args[0] if warning.called else "fits"


@pytest.mark.parametrize("model", MODELS)
def test_a_model_takes_its_own_sets_and_says_something_about_any_other(model):
    for set_name in SETS:
        says, meant_for = outcome(model, set_name), registry.model_of_hparams(set_name)
        assert "\n" not in says
        if meant_for == model:
            assert says == "fits"
        elif says.startswith("refused"):
            assert f"{set_name} is for the model {meant_for}, and lacks " in says
            assert f"use --model={meant_for}, or a set of {model}, such as " in says
        elif says != "fits":
            assert f"{set_name} is for the model {meant_for}; {model} goes with it" in says


def fitting_pairs() -> list[tuple[str, str]]:
    """Returns pairs of a model and another model's small set that are not refused."""
    pairs = ((model, SMALL[other]) for model in MODELS for other in MODELS if model != other)
    return [pair for pair in pairs if not outcome(*pair).startswith("refused")]


def build(model: str, hparams: HParams) -> None:
    """Builds a training step, without devices and memory."""
    hparams.mesh_shape = ""
    request(model, hparams, 64).program(hparams).trace()


@pytest.mark.parametrize(("model", "set_name"), fitting_pairs())
def test_what_is_not_refused_can_be_built(model, set_name):
    hparams = registry.hparams(set_name)
    if set_name == "transformer_moe_encoder_tiny" and model == "transformer_moe":
        with pytest.raises(ValueError, match="moe_gating=expert_choice looks at the whole"):
            build(model, hparams)
    else:
        build(model, hparams)


def test_the_program_refuses_and_warns(trainer, tmp_path, capfd):
    assert trainer(hparams_set="gpt2_small", model="transformer") == 2
    said = capfd.readouterr().err
    assert "gpt2_small is for the model transformer_lm, and lacks num_decoder_layers" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    few = {"schedule": "train", "train_steps": 1, "hparams": "num_hidden_layers=1,batch_size=8"}
    assert trainer(hparams_set="transformer_moe_tiny", **few) == 0
    begins = (
        "warning: the hparams set transformer_moe_tiny is for the model transformer_moe;"
        " transformer_lm goes with it, and does not read "
    )
    (warning,) = (line for line in capfd.readouterr().err.splitlines() if "goes with" in line)
    assert warning.startswith(begins)
    assert {"num_experts", "moe_every"} <= set(warning[len(begins) :].split(", "))


def test_a_set_read_from_a_file_is_checked_too(trainer, tmp_path, capfd, caplog):
    (tmp_path / "run.yaml").write_text("model: transformer_lm\nhparams:\n  d_modl: 3\n")
    read_set(str(tmp_path / "run.yaml"))
    assert "no set of transformer_lm has d_modl: did you mean d_model" in caplog.text
    run_files.write(tmp_path, SETS["vit_tiny"], {})
    assert trainer(hparams_set=tmp_path / "run.yaml") == 2
    said = capfd.readouterr().err
    assert "run.yaml lacks " in said
    assert "num_kv_heads" in said


def test_a_model_derived_from_another_takes_its_sets(own_registries):
    @registry.register_model
    class MyLm(registry.model("transformer_lm")):
        """A user's own model."""

    assert outcome("my_lm", "transformer_lm_tiny") == "fits"
    assert outcome("my_lm", "vit_tiny") == "fits"  # t2tp cannot know which sets it fits.
