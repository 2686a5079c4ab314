"""Saves or restores a checkpoint, by t2tp or tf.train.Checkpoint; or copies a file of its size.

t2tp and the copy wait by fsync until the file is on the disk; tf.train.Checkpoint does not. A step
replaces the files of the previous step.
"""

from __future__ import annotations

import turn

WHATS = ("t2tp_save", "t2tp_restore", "tf_save", "tf_restore", "copy")
turn.PARSER.add_argument("--what", choices=WHATS, required=True)
turn.PARSER.add_argument("--mb", type=int, default=200)
args = turn.arguments()

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import checkpoint

TENSORS = 16
random = np.random.default_rng(0)
columns = args.mb * 10**6 // 4 // TENSORS // 1024
values = {f"w{i}": random.standard_normal((1024, columns), np.float32) for i in range(TENSORS)}
variables = {name: tf.Variable(value) for name, value in values.items()}
slices = [checkpoint.Slice.full(n, v.shape, tf.float32) for n, v in variables.items()]
numbers = itertools.count()


def t2tp_save(directory: Path) -> Path:
    number = next(numbers)
    if number:
        shutil.rmtree(directory / f"step-{number - 1:08d}")
    values = list(zip(slices, variables.values(), strict=True))
    return checkpoint.save(directory, number, [values], {})


def t2tp_restore(directory: Path) -> None:
    values = checkpoint.Checkpoint(directory / "step-00000000").read(slices)
    for variable, value in zip(variables.values(), values, strict=True):
        variable.assign(value)


def tf_save(directory: Path) -> None:
    tf.train.Checkpoint(**variables).write(str(directory / "tf"))


def tf_restore(directory: Path) -> None:
    tf.train.Checkpoint(**variables).read(str(directory / "tf")).assert_consumed()


def copy(directory: Path) -> None:
    copied = directory / "copied"
    copied.unlink(missing_ok=True)
    shutil.copyfile(directory / "file", copied)
    with copied.open("rb") as file:
        os.fsync(file.fileno())


# Not in /tmp, which may be in memory.
with tempfile.TemporaryDirectory(dir=Path(__file__).parent.parent, prefix=".checkpoints-") as name:
    directory = Path(name)
    prepare = {"t2tp_restore": t2tp_save, "tf_restore": tf_save}
    if args.what in prepare:
        prepare[args.what](directory)
    if args.what == "copy":
        (directory / "file").write_bytes(b"".join(v.tobytes() for v in values.values()))
    do = globals()[args.what]
    work = sum(value.nbytes for value in values.values())

    def step() -> float:
        do(directory)
        return 0.0

    turn.take_turns(step, version=f"tensorflow {tf.__version__}", work=work)
