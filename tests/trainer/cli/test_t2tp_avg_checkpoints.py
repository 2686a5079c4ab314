"""`t2tp_avg_checkpoints` on runs of the toy model."""

import functools
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.optim.ema import average_weights, read_averages
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir import averaging
from t2tp.trainer.run_dir.find_checkpoint import find
from tests.files import flip
from tests.trainer import toy
from tests.trainer.command import call, refused
from tests.trainer.toy_estimator import estimator
from tests.trainer.toy_estimator import step_directory as step

average = functools.partial(call, "t2tp_avg_checkpoints")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains a run with checkpoints of the steps 4, 8, 12 and 13."""
    directory = tmp_path_factory.mktemp("averaged") / "run"
    estimator(directory).train(toy.inputs(), 13)
    (directory / "run.yaml").write_text("settings")
    (directory / "huggingface").mkdir()
    (directory / "huggingface/tokenizer.json").write_text("tokens")
    return directory


def read(path, name="w"):
    return find(str(path)).read([Slice.full(name, (6, 4), tf.float32)])[0].numpy()


def test_the_average_of_the_last_ones_evaluates_in_place_of_a_run(run, tmp_path, capsys):
    out = tmp_path / "average"
    assert average(output_dir=run, num_last_checkpoints=3, output_path=out) == 0
    said = capsys.readouterr().out
    assert "averaged the trainable variables of 3 checkpoints" in said
    assert f"in {step(out, 13)}; " in said
    wanted = np.mean([read(step(run, s)) for s in (8, 12, 13)], axis=0, dtype=np.float64)
    np.testing.assert_array_equal(read(out), wanted.astype(np.float32))
    np.testing.assert_array_equal(read(out, "w_momentum_v"), read(step(run, 13), "w_momentum_v"))
    saved = Checkpoint(step(out, 13))
    saved.verify()
    latest = Checkpoint(step(run, 13))
    assert saved.metadata == latest.metadata | {"averaged": [8, 12, 13]}
    assert (out / "run.yaml").read_text() == "settings"
    assert (out / "huggingface/tokenizer.json").read_text() == "tokens"
    sums = estimator(out, "model").evaluate(toy.inputs())
    assert sums == pytest.approx(estimator(run, checkpoint_path=str(out)).evaluate(toy.inputs()))
    assert sums != estimator(run).evaluate(toy.inputs())


def with_moving_averages(mesh, features, mode, hparams):
    """Adds an average of w, and a moving mean like a batch norm's, to the toy model."""
    spec = toy.model_fn(mesh, features, mode, hparams)
    if mode == ModeKeys.TRAIN:
        average_weights(list(mesh.graph.trainable_variables), 0.5)
        d_in = mtf.Shape([mtf.Dimension("d_in", toy.D_IN)])
        kept = mtf.get_variable(mesh, "norm/moving_mean", d_in, trainable=False)
        mtf.assign(kept, kept + 1.0)
    else:
        read_averages(mesh)
    return spec


def test_moving_averages_are_averaged_and_batch_statistics_are_warned_of(tmp_path, capsys):
    def made(directory, **settings):
        config = RunConfig(str(directory), save_checkpoints_steps=4, **settings)
        return Estimator(with_moving_averages, config, {"learning_rate": 0.05})

    run, out = tmp_path / "run", tmp_path / "average"
    made(run).train(toy.inputs(), 8)
    assert average(output_dir=run, num_last_checkpoints=2, output_path=out) == 0
    said = capsys.readouterr()
    assert "the trainable variables and their moving averages (ema_decay) of 2 check" in said.out
    assert re.search(r"warning: 1 .* norms \(norm/moving_mean, ...\) .* step 8 alone", said.err)
    for name in ("w", "w/average"):
        wanted = (read(step(run, 4), name).astype(np.float64) + read(step(run, 8), name)) / 2
        np.testing.assert_array_equal(read(out, name), wanted.astype(np.float32))
    latest, averaged = (made(directory).evaluate(toy.inputs()) for directory in (run, out))
    assert averaged["error"] != latest["error"]


def test_a_list_of_checkpoints_of_any_meshes(run, tmp_path):
    estimator(tmp_path / "other", "one device", random_seed=1).train(toy.inputs(), 8)
    both = [step(run, 12), tmp_path / "other"]
    assert average(checkpoints=f"{both[0]},{both[1]}", output_path=tmp_path / "out") == 0
    wanted = (read(both[0]).astype(np.float64) + read(both[1])) / 2
    np.testing.assert_array_equal(read(tmp_path / "out"), wanted.astype(np.float32))


def test_it_is_written_in_parts_of_bounded_size(run, tmp_path):
    saved = [Checkpoint(step(run, number)) for number in (12, 13)]
    averaging.average(saved, str(tmp_path), part_bytes=40)
    assert len(list(step(tmp_path, 13).glob("variables.data-*"))) == 4  # Two slices of each.
    mean = (read(step(run, 12)) + read(step(run, 13))) / 2
    np.testing.assert_allclose(read(tmp_path), mean, rtol=1e-6)


def test_started_again_after_a_crash_it_finishes_the_work(run, tmp_path, monkeypatch):
    left, copy = [OSError("crash")], averaging.write_bytes

    def crash_once(*arguments):
        if left:
            raise left.pop()
        copy(*arguments)

    monkeypatch.setattr(averaging, "write_bytes", crash_once)
    flags = {"output_dir": run, "num_last_checkpoints": 2, "output_path": tmp_path}
    assert [average(**flags), average(**flags)] == [2, 0]
    assert (tmp_path / "run.yaml").read_text() == "settings"


def test_what_cannot_be_averaged_is_a_sentence_and_writes_nothing(run, tmp_path, capsys):
    estimator(tmp_path / "plain", hparams={"momentum": False}).train(toy.inputs(), 4)
    shutil.copytree(step(run, 8), tmp_path / "cut")
    with open(tmp_path / "cut/variables.data-00000-of-00001", "r+b") as file:
        file.truncate(5)
    shutil.copytree(step(run, 8), tmp_path / "wrong")
    flip(tmp_path / "wrong/variables.data-00000-of-00001")
    out = tmp_path / "out"
    for flags, said in (
        ({"output_dir": run}, "cannot average 8 checkpoints: .* holds 4: steps 4, 8"),
        ({"checkpoints": f"{run},{tmp_path / 'plain'}"}, "w_momentum_v is absent in .*plain"),
        ({"checkpoints": f"{run},{tmp_path / 'cut'}"}, "cut is damaged: .* has 5 bytes"),
        ({"checkpoints": f"{run},{tmp_path / 'wrong'}"}, "wrong is damaged"),
        ({"checkpoints": f"{tmp_path / 'none'}"}, "none does not exist"),
    ):
        error = refused(capsys, "t2tp_avg_checkpoints", **flags, output_path=out)
        assert re.search(said, error), error
    assert not list(out.rglob("step-*"))
    assert average(output_dir=run, num_last_checkpoints=2, output_path=run) == 2
    assert "Step 13 is already saved" in capsys.readouterr().err
    for flags in ({}, {"output_dir": run, "checkpoints": "a"}):
        assert average(**flags, output_path=out) == 2
        assert "give either --checkpoints or --output_dir" in capsys.readouterr().err
