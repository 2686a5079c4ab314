"""Each hyperparameter declares its valid values, and a wrong value is refused with a sentence."""

import pytest

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.models import resnet
from tests import test_hparams_sets

STAGES = "num_hidden_layers=2,mesh_shape=stage:2,layout=layers:stage"
PIECES = "learning_rate_schedule=piecewise,learning_rate_boundaries"
# hparam -> changes to a wrong text that its declaration accepts, and the message when the model is
# built
CHECKED_LATER = {
    "transfer_from": ("transfer_from=no_such_set", "no_such_set"),
    "mesh_shape": ("mesh_shape=data", "data"),
    "layout": ("layout=batch", "batch"),
    "storage_layout": ("storage_layout=d_model", "d_model"),
    "zero_axes": ("zero_axes=data;model", "data;model"),
    "optimizer": ("optimizer=adams", "adams"),
    "learning_rate_schedule": ("learning_rate_schedule=constnt", "constnt"),
    "weight_decay_exclude": (f"weight_decay_exclude={'(.|.)*' * 20}!", "matches none"),
    # Adapters without a base come first; run_dir/test_adapters.py has the pattern.
    "lora_also_trained": ("lora_rank=2,lora_also_trained=zzz", "--warm_start_from"),
    "pipeline_layers": (f"{STAGES},pipeline_layers=2;0", "2;0"),
    "pipeline_schedule": (f"{STAGES},pipeline_schedule=2f2b", "2f2b"),
}
# Values that are each valid alone, but not together.
TOGETHER = {
    "microbatches": ("microbatches=3", "microbatches=3 does not divide a batch of 8"),
    "batch": ("batch_size=1000000000", "32,000,000,000 tokens"),
    "memory": ("vocab_size=2000000000,d_model=4096", "GB in this process, and this machine has"),
    "tokens": ("batch_size=33,batch_size_unit=tokens_per_batch", "use 32 or 64"),
    "heads": ("num_kv_heads=3", "num_kv_heads 3 must divide num_heads 4"),
    "sines": ("position=sinusoidal,d_model=3", "must be even"),
    "rotary": ("position=rotary,d_kv=3", "must be even"),
    "distances": ("position=relative,relative_max_distance=16", "must be above half"),
    "no such variables": ("weight_decay_exclude=zzz", "matches none of the variables"),
    "decay": ("learning_rate_schedule=exp_decay", "needs learning_rate_decay_steps"),
    "boundaries": (f"{PIECES}=[2,1],learning_rate_multiples=[1,1]", "ascending learning_rate"),
}


SETS = {name: registry.hparams(name) for name in test_hparams_sets.SETS}
# (name of an hparam, its limits) -> a set that declares these limits
DECLARED = {(name, str(h.limits(name))): s for s, h in SETS.items() for name in h.values()}


def wrong_values(hparams: HParams, name: str) -> list[str]:
    """Returns values of the right type that the declaration does not allow, as text."""
    limits, whole = hparams.limits(name), hparams.expected(name).startswith(("int", "list[int]"))
    wrong = ["nan", "inf", "-inf", *([str(10**23), str(2**63)] if whole else ["1e39"])]
    if limits.choices is not None:
        wrong = ["no_such_choice", *(["''"] if "" not in limits.choices else [])]
    step = 1 if whole else 1e-3
    wrong += [f"{limits.min - step}"] if limits.min is not None else []
    wrong += [f"{limits.max + step}"] if limits.max is not None else []
    wrong += [f"{exact}" for exact in (limits.above, limits.below) if exact is not None]
    return [f"[{each}]" if "list" in hparams.expected(name) else each for each in wrong]


def wrong_pairs() -> list[tuple[str, str, str]]:
    return [
        (hparams_set, name, value)
        for (name, _), hparams_set in DECLARED.items()
        if "bool" not in SETS[hparams_set].expected(name) and name not in CHECKED_LATER
        for value in wrong_values(SETS[hparams_set], name)
    ]


@pytest.mark.parametrize("name", sorted({name for name, _ in DECLARED}))
def test_each_hparam_says_which_values_it_may_have_and_what_it_means(name):
    for (declared, limits), hparams_set in DECLARED.items():
        if declared == name:
            expected = SETS[hparams_set].expected(name)
            assert limits or expected == "bool" or name in CHECKED_LATER, expected
            assert SETS[hparams_set].help(name), "no help"


def test_a_wrong_value_of_any_hparam_is_one_sentence(trainer, tmp_path, capfd):
    models = {hparams_set: registry.model_of_hparams(hparams_set) for hparams_set in SETS}
    pairs = wrong_pairs()
    assert len(pairs) > 200
    for hparams_set, name, value in pairs:
        change = f"{name}={value}"
        flags = {"model": models[hparams_set], "hparams_set": hparams_set, "hparams": change}
        assert trainer(**flags) == 2, change
        said = capfd.readouterr().err
        assert said.startswith(f"t2tp_trainer: {name}"), change
        assert len(said.splitlines()) == 1, said
    assert not (tmp_path / "run").exists()


WRONG_MODELS = [*CHECKED_LATER.values(), *TOGETHER.values()]


@pytest.mark.parametrize(("changes", "says"), WRONG_MODELS, ids=[*CHECKED_LATER, *TOGETHER])
def test_what_is_wrong_with_a_model_is_one_sentence(trainer, tmp_path, capfd, changes, says):
    assert trainer(schedule="train", hparams=changes) == 2
    said = capfd.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_declared_choice_is_one_that_there_is_code_for():
    blocks = registry.hparams("mtf_resnet_digits").limits("block").choices
    assert set(blocks) == set(resnet._EXPANSION)


def test_the_limits_go_on_with_a_run(trainer, tmp_path, capfd):
    """The limits also apply to a resumed run, and to a run whose set is the file of another run."""
    assert trainer(schedule="train", train_steps=1) == 0
    other = {"hparams_set": tmp_path / "run/run.yaml", "output_dir": tmp_path / "other"}
    capfd.readouterr()
    for flags in ({"train_steps": 2}, other):
        assert trainer(hparams="attention_dropout=2", **flags) == 2
        assert "attention_dropout is 2.0, and must be at least 0" in capfd.readouterr().err
