"""A new run that begins with the values of another run."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.checkpoint import Retention
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import connect
from t2tp.program.variables import Variables, VariableSpec
from t2tp.trainer.run_dir.run_saver import RunSaver
from t2tp.trainer.run_dir.warm_start import WarmStart, WarmStartError, warm_start
from tests.cases import mistakes
from tests.trainer import toy
from tests.trainer.hooks.events import read_scalars
from tests.trainer.toy_estimator import estimator, losses


def model(seed: int, mesh_shape: str = "", dtype: tf.DType = tf.float32, **sizes: int) -> Variables:
    """Creates trainable [d_in, 4] variables by name, each with an optimizer slot."""
    layout = Layout(mesh_shape, "d_in:model")
    made = Variables(layout, connect(layout.size), seed)
    for name, size in sizes.items():
        shape = mtf.Shape([mtf.Dimension("d_in", size), mtf.Dimension("d_out", 4)])
        normal = tf1.random_normal_initializer()
        made.create(VariableSpec(name, shape, dtype, normal, trainable=True))
        made.create(VariableSpec(f"{name}_slot_m", shape, dtype, normal, trainable=False))
    return made


def saved_in(directory, variables):
    """Saves the variables as the checkpoint of a run."""
    with RunSaver(
        directory / "checkpoints",
        variables,
        Retention(1),
        {"trainable": [v.spec.name for v in variables if v.spec.trainable]},
    ) as saver:
        saver.save(7)
    return variables


def values(variables):
    return {v.spec.name: v.numpy() for v in variables}


def test_the_table_says_what_was_loaded_renamed_and_left(tmp_path):
    old = saved_in(tmp_path, model(1, "model:4", body=8, old_head=8, table=16, gone=8))
    new = model(2, "model:2", body=8, head=8, table=24, extra=8)
    initial = values(new)
    source = WarmStart.parse(f"{tmp_path}:^old_=>")
    table, step = warm_start(source, new)
    assert step == 0
    assert table.splitlines() == [
        f"warm start from {tmp_path}/checkpoints/step-00000007 of step 7: loaded 2 of 4 trainable"
        " variables",
        "  1 renamed: head from old_head",
        "  1 of another shape, initialized: table, (16, 4) in the checkpoint, (24, 4) here",
        "  1 not in the checkpoint, initialized: extra",
        "  1 only in the checkpoint: gone",
        "  4 optimizer variables start from scratch",
    ]
    now = values(new)
    np.testing.assert_array_equal(now["body"], old["body"].numpy())
    np.testing.assert_array_equal(now["head"], old["old_head"].numpy())
    for name in initial.keys() - {"body", "head"}:
        np.testing.assert_array_equal(now[name], initial[name])


def test_many_variables_take_one_line(tmp_path):
    names = [f"layer_{number}" for number in range(40)]
    saved_in(tmp_path, model(1, **dict.fromkeys(names, 8)))
    new = model(2, **dict.fromkeys(names, 8), **{f"{name}_new": 8 for name in names})
    lines = warm_start(WarmStart(str(tmp_path)), new)[0].splitlines()
    assert len(lines) == 3 and "loaded 40 of 80" in lines[0]
    assert lines[1].startswith("  40 not in the checkpoint") and lines[1].endswith("and 37 more")


def test_another_precision_is_converted(tmp_path):
    old = saved_in(tmp_path, model(1, a=8))
    new = model(2, dtype=tf.bfloat16, a=8)
    warm_start(WarmStart(str(tmp_path)), new)
    wanted = tf.cast(old["a"].numpy(), tf.bfloat16)
    np.testing.assert_array_equal(new["a"].numpy().astype(np.float32), tf.cast(wanted, tf.float32))


def test_rules_are_applied_one_after_another(tmp_path):
    source = WarmStart.parse("run:(b)(c)?/=>\\1_\\2x/;x/k=>kernel")
    assert source.path == "run"
    renamed = source.renamed(["bc/k", "b/other", "d"])
    assert renamed == {"b_ckernel": "bc/k", "b_x/other": "b/other", "d": "d"}
    assert WarmStart.parse("a:b/c") == WarmStart("a:b/c")
    assert WarmStart.parse("") is None


@mistakes("warm_start_from")
def test_what_cannot_be_meant_says_what_there_is(tmp_path, text, says):
    saved_in(tmp_path, model(1, body=8, table=8))
    new = model(2, body=8, table=8)
    initial = values(new)
    with pytest.raises(WarmStartError, match=says):
        warm_start(WarmStart.parse(text.replace("PATH", str(tmp_path))), new)
    for name, value in values(new).items():
        np.testing.assert_array_equal(value, initial[name])


def test_another_optimizer_is_an_error(tmp_path):
    saved_in(tmp_path, model(1, a=8))
    new = model(2, b=8)
    source = WarmStart.parse(f"{tmp_path}:^a$=>b")
    with pytest.raises(WarmStartError, match="has no b_slot_m: train with the optimizer"):
        warm_start(source, new, with_optimizer=True)


def test_other_shapes_everywhere_are_an_error(tmp_path):
    saved_in(tmp_path, model(1, a=8))
    said = re.escape("a, (8, 4) in the checkpoint, (16, 4) here")
    with pytest.raises(WarmStartError, match=said):
        warm_start(WarmStart(str(tmp_path)), model(2, a=16))


@pytest.mark.slow
def test_a_run_starts_warm_once(tmp_path):
    estimator(tmp_path / "old").train(toy.inputs(), 20)
    cold, warm = (estimator(tmp_path / "cold"), estimator(tmp_path / "warm"))
    warm = estimator(tmp_path / "warm", warm_start_from=str(tmp_path / "old"))
    cold.train(toy.inputs(), 4)
    warm.train(toy.inputs(), 4)
    assert losses(tmp_path / "warm")[0] < losses(tmp_path / "cold")[0] / 2
    straight = estimator(tmp_path / "straight", warm_start_from=str(tmp_path / "old"))
    straight.train(toy.inputs(), 8)
    # If the run has a checkpoint, it resumes from that, even if the other run does not exist.
    gone = estimator(tmp_path / "warm", warm_start_from=str(tmp_path / "nowhere"))
    gone.train(toy.inputs(), 8)
    assert losses(tmp_path / "warm") == losses(tmp_path / "straight")
    # With the optimizer's slots, it continues as the other run would.
    source = {"warm_start_from": str(tmp_path / "old"), "warm_start_optimizer": True}
    estimator(tmp_path / "on", **source).train(toy.inputs(), 24)
    estimator(tmp_path / "old").train(toy.inputs(), 24)
    on, old = (read_scalars(tmp_path / name)["loss"] for name in ("on", "old"))
    assert sorted(on) == [21, 22, 23, 24] and on.items() <= old.items()


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        estimator(tmp_path, warm_start_from=str(tmp_path / "nowhere")).train(toy.inputs(), 4)
    assert not (tmp_path / "checkpoints").exists()
