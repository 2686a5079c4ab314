"""Small trained runs, for tests of programs that read a run."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from t2tp import registry
from tests.trainer import tiny_pairs, tiny_problem  # noqa: F401 (registers problems)
from tests.trainer.command import call, flags_of


@dataclass(frozen=True)
class Run:
    """A run that was trained for a few steps.

    Attributes:
      output_dir: directory of the run.
      data_dir: directory of the problem's data.
      problem: name of the problem.
    """

    output_dir: Path
    data_dir: Path
    problem: str

    def decode(self, **flags: object) -> int:
        """Runs `t2tp_decoder` on the run with flags by name, and returns the exit code."""
        return call("t2tp_decoder", *self.flags(**flags))

    def decoded(self, directory, lines, options, **flags):
        """Decodes lines by `t2tp_decoder`, through files in `directory`; returns the results."""
        source, result = directory / "sources.txt", directory / "decoded.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        files = {"decode_from_file": source, "decode_to_file": result, "xla": "false"}
        assert self.decode(decode_hparams=options, **{**files, **flags}) == 0
        return result.read_text(encoding="utf-8").split("\n")[:-1]

    def flags(self, **flags: object) -> list[str]:
        """Returns the flags of a command line for the run."""
        return flags_of({"output_dir": self.output_dir, "data_dir": self.data_dir, **flags})


# Problem, model and hparams set of a run.
TEXTS = ("languagemodel_encodings", "transformer_lm", "transformer_lm_test")
PAIRS = ("translate_upper_case", "transformer", "transformer_test")


def train(directory: Path, names: tuple[str, str, str], **flags: object) -> Run:
    """Makes the data of a problem, and trains a model for a few steps."""
    problem, model, hparams_set = names
    registry.problem(problem)().prepare(directory / "data")
    run = Run(directory / "run", directory / "data", problem)
    settings = {"problem": problem, "model": model, "hparams_set": hparams_set}
    few = {"train_steps": 30, "schedule": "train", **flags}
    assert call("t2tp_trainer", *run.flags(**settings, **few)) == 0
    return run


def train_images(directory: Path, **flags: object) -> Run:
    """Trains a model that generates digits."""
    pytest.importorskip("PIL.Image")
    small = "batch_size=8,num_hidden_layers=1,mesh_shape=,layout="
    names = ("image_digits_gen", "mtf_image_transformer", "mtf_image_transformer_digits")
    return train(directory, names, hparams=small, **flags)
