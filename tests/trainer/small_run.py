"""The command line of a small training, and a check that two runs are the same."""

from pathlib import Path

from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.inspection import differences
from tests.trainer.command import flags_of
from tests.trainer.conftest import NEW
from tests.trainer.hooks.events import read_scalars


def flags(output_dir: Path, data_dir: Path, /, **changes: object) -> list[str]:
    """Returns the flags of `t2tp_trainer` for a language model with dropout on a mesh of 2x2.

    Args:
      output_dir: directory of the run.
      data_dir: directory of the problem's data.
      changes: changed flags; a flag of None is omitted.
    """
    given = {
        **NEW,
        "hparams": "layer_prepostprocess_dropout=0.1",
        "mesh_shape": "data:2;model:2",
        "schedule": "train",
        "data_dir": data_dir,
        "output_dir": output_dir,
        "log_step_count_steps": 1,
        "random_seed": 3,
        **changes,
    }
    return flags_of(given)


def assert_same(run: Path, other: Path, step: int) -> None:
    """Checks that two runs have the same losses, and the same checkpoint at a step."""
    assert read_scalars(run)["loss"] == read_scalars(other)["loss"]
    saved = [Checkpoint(each / f"checkpoints/step-{step:08d}") for each in (run, other)]
    assert differences(*saved) == []
