"""A program that leaves the files of a run as `t2tp_trainer` does, and trains nothing.

With `--model=fails` it fails; with `--model=waits` it waits for a signal and saves.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import t2tp.hparams  # noqa: F401  (registers ranged sets)
from t2tp import registry
from t2tp.hparams.transformer_lm import transformer_lm_tiny
from t2tp.trainer.cli.flag_groups import parse
from t2tp.trainer.cli.programs import TRAINER
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord


def _save(number: int, frame: FrameType | None) -> None:
    print("saved", flush=True)
    sys.exit(128 + number)


def main() -> int:
    """Returns the exit code."""
    flags, _ = parse(TRAINER.groups, sys.argv)
    if flags.model == "fails":
        return 1
    if flags.model == "waits":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _save)
        print("training", flush=True)
        signal.pause()
    hparams = transformer_lm_tiny()
    for name, value in (
        registry.ranged_hparams(flags.hparams_range).sample_trial(flags.trial).items()
    ):
        hparams.set(name, value)
    directory = Path(flags.output_dir)
    directory.mkdir(parents=True)
    hparams.save(directory / "hparams.json")
    EvaluationRecord(directory / "eval").add(2, {"loss": 1 / (1 + flags.trial)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
