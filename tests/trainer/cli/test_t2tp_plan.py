"""`t2tp_plan`: text, JSON, and errors of one sentence."""

import json
import random
import re
import shlex

import pytest

from t2tp import registry
from t2tp.trainer.planning import request
from tests.trainer.command import call, wrong_flags

FLAGS = {
    "model": "transformer_lm",
    "hparams_set": "transformer_lm_tiny",
    "vocab_size": 512,
    "cluster": "a100",
    "mesh_shape": "data:2;model:2",
}


def planned(**flags):
    return call("t2tp_plan", **{**FLAGS, **flags})


def test_it_prints_a_plan(capfd):
    assert planned() == 0
    said = capfd.readouterr().out
    for expected in ("Step\n", "MFU ", "bound by ", "Memory of a device", "Seconds by kind"):
        assert expected in said


def test_it_prints_json(capfd):
    assert planned(json="true") == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["devices"] == 4 and plan["fits"] == "yes"
    total = sum(cost["seconds"] for cost in plan["costs"])
    assert plan["seconds"] == pytest.approx(total)
    assert plan["memory_total"] == sum(plan["memory"].values())


def test_it_searches(capfd):
    assert planned(search="true", devices=2, top=2, mesh_shape=None, train_tokens="1B") == 0
    said = capfd.readouterr()
    assert said.out.count("--model=transformer_lm --hparams_set=transformer_lm_tiny --mesh") == 2
    assert re.search(r"The fastest takes [\d.,]+ days", said.out)
    assert "planning" in said.err


@pytest.mark.parametrize(("stack", "hint"), [("t2tp", "--iterations_per_loop"), ("fsdp", "--fix")])
def test_it_says_what_relieves_the_bottleneck(stack, hint, capfd):
    assert planned(stack=stack) == 0
    (bound,) = [line for line in capfd.readouterr().out.splitlines() if "  bound by " in line]
    assert hint in bound and ("launches" in bound) == (stack == "t2tp")


@wrong_flags("t2tp_plan")
def test_wrong_input_is_one_sentence(flags, says, capfd):
    assert planned(**flags) == 2
    said = capfd.readouterr()
    assert said.out == "" and says in said.err
    # An earlier line reports how the vocabulary is rounded.
    assert said.err.strip().splitlines()[-1].startswith("t2tp_plan: ")


# Model -> changes to its tiny set, vocabulary or classes.
FAMILIES = {
    "transformer_lm": ("num_hidden_layers=4,num_kv_heads=2,", 512),
    "transformer_moe": ("num_hidden_layers=4,", 512),
    "transformer": ("num_hidden_layers=2,", 512),
    "vit": ("", 10),
    "mtf_resnet": ("", 10),
}
FIXED = (
    "",
    "heads:model",
    "heads:model,sequence_parallel=true",
    "layers:stage",
    "layers:stage,pipeline_schedule=interleaved",
    "recompute=layer",
    "zero_stage=3",
    "experts:expert",
    "batch:data,microbatches=2",
)


def said(capfd, **flags):
    """Returns the JSON that t2tp_plan prints; None if nothing fits."""
    capfd.readouterr()
    code = planned(**{**dict.fromkeys(FLAGS), "cluster": "cpu", "json": "true", **flags})
    printed = capfd.readouterr()
    assert code in (0, 2), printed.err
    return json.loads(printed.out) if code == 0 else None


def given(line):
    """Returns the flags by name of a printed command line."""
    return dict(word.removeprefix("--").split("=", 1) for word in shlex.split(line))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("model", FAMILIES)
def test_every_line_of_a_search_gives_the_same_plan_when_it_is_pasted(model, seed, capfd):
    chosen = random.Random(f"{model} {seed}")
    changes, size = FAMILIES[model]
    images = {"image_shape": "32,32,3"} if size == 10 else {}
    devices = chosen.randint(1, 8)
    rows = chosen.choice([2, 4, 8]) * devices
    changes += f"batch_size={rows},batch_size_unit=sequences_per_batch"
    base = {"model": model, "hparams_set": f"{model}_tiny", "vocab_size": size, **images}
    fix = chosen.choice(FIXED)
    fixed = {"fix": fix} if fix else {}
    search = {"search": "true", "devices": devices, "top": 2, "hparams": changes, **fixed}
    for proposal in said(capfd, **base, **search) or ():
        line = given(proposal["flags"])
        again = said(capfd, vocab_size=size, **images, **line)
        assert again == proposal["plan"], proposal["flags"]
        # The real program has all layers and stages, whereas a plan lowers only a few of them.
        hparams = registry.hparams(line["hparams_set"])
        hparams.parse(line.get("hparams", ""))
        for name in ("mesh_shape", "layout"):
            hparams.set(name, line[name])
        program = request(model, hparams, size, (32, 32, 3)).program(hparams)
        program.collective_log()
        assert program.layout.size == devices


# Model, vocabulary or classes, and flags of the search.
TRAINED = {
    "one device": ("transformer_lm", 300, {"devices": 1}),
    "tensor": ("transformer_lm", 300, {"devices": 2, "fix": "heads:model"}),
    "stages": ("transformer_lm", 300, {"devices": 2, "fix": "layers:stage"}),
    "ZeRO": ("transformer_lm", 300, {"devices": 4, "fix": "zero_stage=2"}),
    "experts": ("transformer_moe", 300, {"devices": 2, "fix": "experts:expert"}),
    "images": ("vit", 10, {"devices": 2, "image_shape": "8,8,1"}),
}


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINED)
def test_a_line_of_a_search_trains_when_it_is_pasted(case, trainer, tmp_path, capfd):
    model, size, flags = TRAINED[case]
    images = size == 10
    batch = {"hparams": "batch_size=16"} if images else {"global_batch_tokens": "1K"}
    base = {"model": model, "hparams_set": f"{model}_tiny", "vocab_size": size}
    (best,) = said(capfd, **base, **batch, search="true", top=1, **flags)
    data = {"problem": "image_digits", "data_dir": tmp_path / "data", "generate_data": True}
    line = {**(data if images else {}), **given(best["flags"])}
    assert trainer(schedule="train", train_steps=1, **line) == 0
