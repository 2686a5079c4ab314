"""`t2tp_inspect_checkpoint` on runs of the toy model."""

import shutil

import numpy as np
import tensorflow as tf

from t2tp.checkpoint import Slice, save
from tests.trainer import toy
from tests.trainer.command import call, refused
from tests.trainer.toy_estimator import estimator

PROGRAM = "t2tp_inspect_checkpoint"


def test_it_shows_the_variables_and_how_they_lay(trained_run, capsys):
    assert call(PROGRAM, trained_run) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{trained_run}/checkpoints/step-00000010: step 10, saved 20")
    assert first.endswith("mesh data:2;model:2, layout batch:data;d_out:model")
    assert [line.split("  ")[0] for line in lines if line][-2:] == [
        "trainable: 1 variables, 24 numbers, 96 bytes",
        "kept by the optimizer: 1 variables, 24 numbers, 96 bytes",
    ]
    assert lines[1].split() == ["variable", "shape", "dtype", "bytes", "split", "over"]
    wanted = ["w", "[d_in:6,", "d_out:4]", "float32", "96", "d_out:model", "(2", "slices)"]
    assert lines[2].split() == wanted


def test_what_does_not_say_its_dimensions_is_shown_too(tmp_path, capsys):
    whole = Slice.full("v", (2, 3), tf.float16)
    save(tmp_path / "checkpoints", 1, [[(whole, tf.ones([2, 3], tf.float16))]], {})
    assert call(PROGRAM, tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["v", "[2,", "3]", "float16", "12", "?"]
    assert lines[-1] == "variables: 1 variables, 6 numbers, 12 bytes"


def test_two_that_are_the_same_on_any_mesh(trained_run, tmp_path, capsys):
    shutil.copytree(trained_run / "checkpoints", tmp_path / "checkpoints")
    estimator(tmp_path, "one device").train(toy.inputs(), 11)
    shutil.copytree(trained_run / "checkpoints/step-00000010", tmp_path / "copy")
    assert call(PROGRAM, trained_run, tmp_path / "copy") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the same: 2 variables"
    assert call(PROGRAM, trained_run, tmp_path) == 1
    assert capsys.readouterr().out.count("24 of 24 values differ") == 2


def test_in_what_two_differ(tmp_path, capsys):
    ones, nan = np.ones([2], np.float32), np.float32([1, np.nan, 3])
    # The values of each variable in the two checkpoints.
    values = {
        "dtype": (ones, ones.astype(np.float16)),
        "here": (ones, None),
        "nan": (nan, nan),
        "one_nan": (nan, np.float32([1, 2, 3.5])),
        "shape": (ones, np.ones([3], np.float32)),
        "there": (None, ones),
        "value": (np.float32([1, 2, 3]), np.float32([1, 2.25, 3.125])),
    }

    def saved(number):
        found = [(name, x[number]) for name, x in values.items() if x[number] is not None]
        slices = [(Slice.full(name, x.shape, tf.as_dtype(x.dtype)), x) for name, x in found]
        return str(save(tmp_path / str(number), 1, [slices], {}))

    first, second = saved(0), saved(1)
    assert call(PROGRAM, first, second) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{first} (step 1)",
        f"{second} (step 1)",
        "dtype: dtype float32 and float16",
        f"here: only in {first}",
        "one_nan: 2 of 3 values differ, by at most nan",
        "shape: shape (2,) and (3,)",
        f"there: only in {second}",
        "value: 2 of 3 values differ, by at most 0.25",
    ]


def test_a_damaged_one_is_a_sentence(trained_run, tmp_path, capsys):
    shutil.copytree(trained_run / "checkpoints/step-00000010", tmp_path / "damaged")
    data = tmp_path / "damaged/variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    said = refused(capsys, PROGRAM, trained_run, tmp_path / "damaged")
    assert f"The checkpoint {tmp_path}/damaged is damaged" in said
    missing = f"{tmp_path}/none does not exist: name a checkpoint's directory, or a run's\n"
    assert refused(capsys, PROGRAM, tmp_path / "none") == f"{PROGRAM}: {missing}"
