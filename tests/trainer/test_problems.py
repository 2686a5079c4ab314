"""Problems that the trainer finds by more than a registered name."""

from __future__ import annotations

from pathlib import Path

import pytest

from t2tp.trainer import run_files
from tests.trainer.conftest import PROBLEM

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_users_own_problem_is_made_and_trained_on(trainer, tmp_path):
    """Through a folder; its wishes for hparams count for less than the command line's."""
    flags = {
        "t2t_usr_dir": EXAMPLES / "my_problems",
        "problem": "roman_numerals",
        "data_dir": tmp_path / "data",
        "hparams_set": "transformer_lm_tiny",
        "generate_data": True,
        "schedule": "train",
        "train_steps": 2,
    }
    assert trainer(**flags) == 0
    assert run_files.read(tmp_path / "run").hparams.max_length == 16  # 128 in the set
    assert trainer(**flags, output_dir=tmp_path / "other", hparams="max_length=32") == 0
    assert run_files.read(tmp_path / "other").hparams.max_length == 32


def test_a_mixture_trains_and_is_evaluated(trainer, data_dir, tmp_path):
    assert trainer(problem=f"mixture:{PROBLEM}=1", data_dir=data_dir) == 0
    assert run_files.read(tmp_path / "run").flags["problem"] == f"mixture:{PROBLEM}=1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"t2t_usr_dir": "/nowhere"}, "there is no such folder"),
        ({"problem_options": "sepperate_documents=False"}, "did you mean separate_documents"),
        ({"problem": "tfds:nothing_of_the_kind"}, "nothing_of_the_kind"),
        ({"problem": "mixture:languagemodel_encoding=1"}, f"did you mean {PROBLEM}"),
    ],
)
def test_what_cannot_be_found_is_one_sentence(trainer, capfd, tmp_path, flags, said):
    assert trainer(**flags) == 2
    assert said in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
