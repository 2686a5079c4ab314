"""What the table of tensor2tensor's flags says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from t2tp.trainer import t2tp_eval, t2tp_tune, trainer_flags
from t2tp.trainer.errors import UsageError
from t2tp.trainer.flag_groups import define
from t2tp.trainer.tensor2tensor_flags import FATES, markdown_table

PAGE = Path(__file__).parents[2] / "docs/coming_from_tensor2tensor.md"


def test_every_flag_of_tensor2tensor_has_its_line():
    assert len(FATES) == 73
    assert {fate.kind for fate in FATES.values()} == {"same", "renamed", "gone"}
    assert all(fate.note for fate in FATES.values() if fate.kind != "same")


def test_flags_are_here_or_not_as_the_table_says():
    here = set(trainer_flags.define())
    for name, fate in FATES.items():
        assert (name in here) == (fate.kind == "same"), name


def test_what_the_table_names_exists():
    here = set(trainer_flags.define()) | set(define(t2tp_tune.GROUPS))
    for fate in FATES.values():
        for flag in re.findall(r"--(\w+)", fate.note):
            assert {flag, flag.removeprefix("no")} & here, flag


def test_a_flag_that_is_gone_is_answered_with_what_to_do():
    for argument, says in (
        ("--use_tpu", "'use_tpu'. tensor2tensor's flag is gone: it is about TPUs"),
        ("--nosync", "'nosync'. tensor2tensor's flag is gone: training is always synchronous."),
        ("--worker_id=1", "'worker_id'. Here it is: --process_id."),
        ("--hp_d_ff=8", "Hyperparameters are written --hparams=d_ff=VALUE."),
        ("--problems=x", "Did you mean: problem"),
    ):
        with pytest.raises(UsageError) as error:
            trainer_flags.parse(["t2tp_trainer", argument])
        assert says in str(error.value)


def test_the_page_has_the_table():
    assert markdown_table() in PAGE.read_text("utf-8")


def test_help_says_each_flag_once_under_its_subject():
    text = trainer_flags.help_text()
    for name in set(trainer_flags.define()) - {"help"}:
        assert len(re.findall(rf"^  --(?:\[no\])?{name}  ", text, re.MULTILINE)) == 1, name
    assert text.index("Evaluation and early stopping:") < text.index("--eval_steps  Batches")
    assert "--eval_steps  Batches of an evaluation; 0 or -1: all. (default: -1)" in text
    assert max(map(len, text.splitlines())) <= 100
    assert set(define(t2tp_eval.GROUPS)) > {"split", "mesh_shape", "hparams"}
