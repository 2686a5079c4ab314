"""`t2tp_plan`: text, JSON, and errors of one sentence."""

from __future__ import annotations

import json
import re

import pytest

from t2tp.trainer.cli.programs import PLAN
from t2tp.trainer.cli.run_program import run_program

FLAGS = {
    "model": "transformer_lm",
    "hparams_set": "transformer_lm_tiny",
    "vocab_size": 512,
    "cluster": "a100",
    "mesh_shape": "data:2;model:2",
}


def planned(**flags):
    given = {name: value for name, value in {**FLAGS, **flags}.items() if value is not None}
    return run_program(PLAN, ["t2tp_plan", *(f"--{name}={value}" for name, value in given.items())])


def test_it_prints_a_plan(capfd):
    assert planned() == 0
    said = capfd.readouterr().out
    for expected in ("Step: ", "MFU ", "bound by ", "Memory of a device", "Seconds by kind"):
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
    said = capfd.readouterr().out
    assert "The fastest, for t2tp_trainer:" in said and "--mesh_shape='" in said
    assert re.search(r"It takes [\d.,]+ days", said)


WRONG = {
    "devices": ({"search": "true"}, "--search needs --devices"),
    "tokens": ({"train_tokens": "many"}, "a number of tokens such as 4T"),
    "choice": ({"search": "true", "devices": 2, "fix": "zero=1"}, "the choices are microbatches"),
    "cluster": ({"cluster": "a10"}, "--cluster=a10: did you mean a100"),
    "stack": ({"stack": "megatro"}, "did you mean megatron"),
    "model": ({"model": "transformer_ml"}, "did you mean transformer_"),
    "layout": ({"mesh_shape": "model:3"}, "does not divide"),
    "vocabulary": ({"vocab_size": None}, "--vocab_size is missing"),
    "hparam": ({"hparams": "d_modl=3"}, "d_model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence(name, capfd):
    flags, says = WRONG[name]
    assert planned(**flags) == 2
    said = capfd.readouterr()
    assert said.out == "" and says in said.err
    # The vocabulary's rounding is said before.
    assert said.err.strip().splitlines()[-1].startswith("t2tp_plan: ")
