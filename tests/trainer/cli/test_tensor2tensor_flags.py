"""What the table of tensor2tensor's flags says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from t2tp.trainer.cli.flag_groups import define, parse
from t2tp.trainer.cli.programs import TRAINER, TUNE
from t2tp.trainer.cli.tensor2tensor_flags import FLAG_STATUS, markdown_table
from t2tp.trainer.errors import UsageError

PAGE = Path(__file__).parents[3] / "docs/coming_from_tensor2tensor.md"


def test_every_flag_of_tensor2tensor_has_its_line():
    assert len(FLAG_STATUS) == 73
    assert {fate.kind for fate in FLAG_STATUS.values()} == {"same", "renamed", "gone"}
    assert all(fate.note for fate in FLAG_STATUS.values() if fate.kind != "same")


def test_flags_are_here_or_not_as_the_table_says():
    here = set(define(TRAINER.groups))
    for name, fate in FLAG_STATUS.items():
        assert (name in here) == (fate.kind == "same"), name


def test_what_the_table_names_exists():
    here = set(define(TRAINER.groups)) | set(define(TUNE.groups))
    for fate in FLAG_STATUS.values():
        for flag in re.findall(r"--(\w+)", fate.note):
            assert {flag, flag.removeprefix("no")} & here, flag


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--use_tpu", "'use_tpu'. tensor2tensor's flag is gone: it is about TPUs"),
        ("--nosync", "'nosync'. tensor2tensor's flag is gone: training is always synchronous."),
        ("--worker_id=1", "'worker_id'. Here it is: --process_id."),
        ("--hp_d_ff=8", "Hyperparameters are written --hparams=d_ff=VALUE."),
    ],
)
def test_a_flag_that_is_gone_is_answered_with_what_to_do(argument, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        parse(TRAINER.groups, ["t2tp_trainer", argument])


def test_the_page_has_the_table():
    assert markdown_table() in PAGE.read_text("utf-8")
