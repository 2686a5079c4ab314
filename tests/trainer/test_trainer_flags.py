from __future__ import annotations

import pytest

from t2tp.trainer import trainer_flags
from t2tp.trainer.errors import UsageError


def test_flags_are_read_and_hparams_add_up():
    flags = trainer_flags.parse(["t2tp_trainer", "--hparams=a=1", "--hparams=b=2", "--xla"])
    assert (flags.hparams, flags.xla, flags.train_steps) == (["a=1", "b=2"], True, None)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--problems=x", "Unknown command line flag 'problems'. Did you mean: problem"),
        ("--train_steps=many", "train_steps"),
        ("--decode_length=-1", "decode_length"),
        ("train", "'train' is no flag"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(argument, says):
    with pytest.raises(UsageError) as error:
        trainer_flags.parse(["t2tp_trainer", argument])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_help_names_every_flag():
    text = trainer_flags.help_text()
    for name in trainer_flags.define():
        assert name in text
