"""A program that writes the files of a run like `t2tp_trainer`, but does not train.

Its loss depends only on the learning rate and the step. With `--model=fails`, it fails; with
`--model=waits`, it waits for a signal and saves; with `--model=slow`, a step takes time. Each step
is recorded in the file `steps` of the run.
"""

import fcntl
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import t2tp.hparams  # noqa: F401  (registers the sets)
from t2tp import registry
from t2tp.trainer.cli.flag_groups import parse
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from t2tp.trainer.run_dir.lock_file import LOCK_FILE

_stopped: list[int] = []


def loss(learning_rate: float, step: int) -> float:
    """Returns the loss that the program reports."""
    return 1.0 + abs(math.log10(learning_rate) + 3.0) + 1.0 / step


def _save(number: int, frame: FrameType | None) -> None:
    print("saved", flush=True)
    sys.exit(128 + number)


def main() -> int:
    """Runs the program, and returns its exit code."""
    flags, _ = parse(PROGRAMS["t2tp_trainer"].groups, sys.argv)
    if flags.model == "fails":
        return 1
    if flags.model == "waits":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _save)
        print("training", flush=True)
        signal.pause()
    signal.signal(signal.SIGTERM, lambda number, frame: _stopped.append(number))
    hparams = registry.hparams("transformer_lm_tiny")
    for text in flags.hparams:
        hparams.parse(text)
    directory = Path(flags.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _train(flags, hparams.learning_rate_constant, directory)


def _train(flags, learning_rate: float, directory: Path) -> int:
    record = EvaluationRecord(directory / "eval")
    (directory / "cores").write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
    for step in range(max(record.by_step(), default=0) + 1, (flags.train_steps or 2) + 1):
        if _stopped:
            return 128 + _stopped[0]
        if flags.model == "slow":
            time.sleep(0.2)
        with (directory / "steps").open("a") as steps:
            steps.write(f"{step}\n")
        scores = {"loss": loss(learning_rate, step), "accuracy": -learning_rate}
        record.add(step, {**scores, "rate": learning_rate})
    return 0


if __name__ == "__main__":
    sys.exit(main())
