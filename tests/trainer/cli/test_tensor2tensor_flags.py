"""The table of tensor2tensor's flags is correct."""

import re
from pathlib import Path

import pytest

from t2tp.trainer.cli.flag_groups import define, flag_table, parse
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.errors import UsageError

PAGE = Path(__file__).parents[3] / "docs/coming_from_tensor2tensor.md"


def test_every_flag_of_tensor2tensor_has_its_line():
    assert len(flag_table()) == 73
    assert {kind for kind, _ in flag_table().values()} == {"same", "replaced", "removed"}
    assert all(note for kind, note in flag_table().values() if kind != "same")


def test_flags_are_here_or_not_as_the_table_says():
    here = set(define(PROGRAMS["t2tp_trainer"].groups))
    for name, (kind, _) in flag_table().items():
        assert (name in here) == (kind == "same"), name


def test_what_the_table_names_exists():
    here = set(define(PROGRAMS["t2tp_trainer"].groups)) | set(define(PROGRAMS["t2tp_tune"].groups))
    for _, note in flag_table().values():
        for flag in re.findall(r"--(\w+)", note):
            assert {flag, flag.removeprefix("no")} & here, flag


CASES = [
    ("--use_tpu", "'use_tpu'. t2tp does not have this flag of tensor2tensor: it is for TPUs"),
    ("--nosync", "'nosync'. t2tp does not have this flag of tensor2tensor: training is always"),
    ("--worker_id=1", "'worker_id'. Use: --process_id."),
    ("--hp_d_ff=8", "Hyperparameters are written --hparams=d_ff=VALUE."),
]


@pytest.mark.parametrize(("argument", "says"), CASES)
def test_the_error_for_a_flag_of_tensor2tensor_gives_advice(argument, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        parse(PROGRAMS["t2tp_trainer"].groups, ["t2tp_trainer", argument])


def test_the_page_has_the_table():
    rows = [f"| `--{name}` | {kind} | {note} |" for name, (kind, note) in flag_table().items()]
    table = "\n".join(["| flag of t2t-trainer | here |  |", "| -- | -- | -- |", *rows]) + "\n"
    assert table in PAGE.read_text("utf-8")
