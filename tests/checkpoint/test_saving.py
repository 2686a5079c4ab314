import numpy as np
import pytest
import tensorflow as tf

from t2tp.checkpoint import (
    Checkpoint,
    Slice,
    UnusableCheckpointError,
    all_steps,
    latest,
    read_metrics,
    save,
    set_aside,
)
from tests.checkpoint import samples
from tests.files import files_of_at_most


def save_step(directory, step):
    return save(directory, step, [samples.of_step(step)], {"seen": step * 10})


def test_what_was_saved_comes_back(tmp_path):
    path = save_step(tmp_path / "run", 300)
    assert path == tmp_path / "run" / "step-00000300"
    names = ["FINISHED", "metadata.json", "variables.data-00000-of-00001", "variables.index"]
    assert sorted(each.name for each in path.iterdir()) == names
    assert list(path.parent.iterdir()) == [path]
    checkpoint = Checkpoint(path)
    samples.assert_is_step(checkpoint, 300)
    checkpoint.verify()
    assert checkpoint.shapes() == {"table": (16, 12), "global_step": (), "half": (6,)}
    assert checkpoint.dtypes() == {"table": tf.float32, "global_step": tf.int64, "half": tf.float16}


@pytest.mark.parametrize("dtype", samples.DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype_round_trips_in_any_slices(tmp_path, dtype):
    value = tf.cast(np.arange(-12, 12).reshape(4, 6) % 7, dtype)
    scalar = tf.cast(1, dtype)
    cuts = [Slice("w", (4, 6), (0, 0), (1, 6), dtype), Slice("w", (4, 6), (1, 0), (3, 6), dtype)]
    values = [
        (cuts[0], value[:1]),
        (cuts[1], value[1:]),
        (Slice.full("whole", (4, 6), dtype), value),
        (Slice.full("scalar", (), dtype), scalar),
        (Slice.full("nothing", (0, 2), dtype), tf.zeros((0, 2), dtype)),
    ]
    checkpoint = Checkpoint(save(tmp_path, 1, [values], {}))
    assert set(checkpoint.dtypes().values()) == {dtype}
    for name in ("w", "whole"):
        some, all_of_it = checkpoint.read(
            [Slice(name, (4, 6), (0, 2), (2, 3), dtype), Slice.full(name, (4, 6), dtype)]
        )
        assert some.dtype == all_of_it.dtype == dtype
        np.testing.assert_array_equal(some.numpy(), value[0:2, 2:5].numpy())
        np.testing.assert_array_equal(all_of_it.numpy(), value.numpy())
    one, nothing = checkpoint.read(
        [Slice.full("scalar", (), dtype), Slice.full("nothing", (0, 2), dtype)]
    )
    assert one.numpy() == scalar.numpy()
    assert nothing.shape == (0, 2)


def test_tensorflow_reads_it_as_ordinary_variables(tmp_path):
    reader = tf.train.load_checkpoint(Checkpoint(save_step(tmp_path, 7)).prefix)
    np.testing.assert_array_equal(reader.get_tensor("table"), samples.table(7))
    np.testing.assert_array_equal(reader.get_tensor("half"), np.full(6, 7.0))
    assert reader.get_tensor("global_step") == 7


REFUSED = [
    ("tabel", (16, 12), tf.float32, r"no 'tabel'.*did you mean table\?"),
    ("table", (16, 13), tf.float32, r"float32 \(16, 12\).*float32 \(16, 13\)"),
    ("table", (16, 12), tf.bfloat16, r"float32 \(16, 12\).*bfloat16 \(16, 12\)"),
]


@pytest.mark.parametrize(("name", "shape", "dtype", "message"), REFUSED)
def test_another_name_shape_or_dtype_is_refused_naming_both(tmp_path, name, shape, dtype, message):
    checkpoint = Checkpoint(save_step(tmp_path, 1))
    with pytest.raises((LookupError, ValueError), match=message):
        checkpoint.read([Slice.full(name, shape, dtype)])


def test_the_latest_is_of_the_highest_step(tmp_path):
    for step in (9, 100_000_000, 10):
        save_step(tmp_path, step)
    samples.assert_is_step(latest(tmp_path), 100_000_000)
    assert all_steps(tmp_path) == [9, 10, 100_000_000]


def test_a_saved_step_is_not_overwritten(tmp_path):
    save_step(tmp_path, 3)
    with pytest.raises(ValueError, match="Step 3 is already saved"):
        save(tmp_path, 3, [samples.of_step(4)], {})
    samples.assert_is_step(latest(tmp_path), 3)


WRONG_SAVES = [
    (-1, samples.of_step(1), {}, "at least 0, not -1"),
    (2, [], {}, "nothing to save at step 2"),
    (2, samples.of_step(1)[1:], {}, "The 7 slices of 'table' have 168"),
    (2, samples.of_step(1), {"a": (1, 2)}, "lists for tuples"),
    (2, samples.of_step(1), {"a": {1: 2}}, "strings for keys"),
    (2, samples.of_step(1), {"a": float("nan")}, "plain JSON"),
    (2, samples.of_step(1), {"a": np.float32(1)}, "plain JSON.*float32"),
    (2, [(samples.part((0, 0), (4, 6)), tf.zeros((4, 5)))], {}, r"\(4, 6\).*\(4, 5\)"),
    (2, [(samples.part((0, 0), (1, 1)), tf.zeros((1, 1), tf.int32))], {}, "float32.*int32"),
    (2, [(Slice.full("s", (), tf.string), tf.constant("a"))], {}, "is string.*they store"),
]


@pytest.mark.parametrize(("step", "values", "metadata", "message"), WRONG_SAVES)
def test_a_wrong_save_is_refused_and_leaves_nothing(tmp_path, step, values, metadata, message):
    save_step(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        save(tmp_path, step, [values], metadata)
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]


def test_an_address_is_no_directory():
    with pytest.raises(ValueError, match="mounted file system"):
        save("gs://bucket/run", 1, [samples.of_step(1)], {})


def test_a_directory_that_cannot_be_written_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match=r"step 5 could not be saved in .*file/run: .*untouched"):
        save_step(tmp_path / "file" / "run", 5)


@pytest.mark.parametrize(
    ("size", "metadata"), [(10, {}), (900, {"long": 900 * "x"})], ids=["variables", "metadata"]
)
def test_a_disk_that_fills_up_costs_no_earlier_checkpoint(tmp_path, size, metadata):
    save_step(tmp_path, 1)
    with (
        files_of_at_most(size),
        pytest.raises(OSError, match=r"step 2 could not be saved in .*File too large"),
    ):
        save(tmp_path, 2, [samples.of_step(2)], metadata)
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]
    samples.assert_is_step(latest(tmp_path), 1)
    samples.assert_is_step(Checkpoint(save_step(tmp_path, 2)), 2)


def test_what_is_saved_in_parts_is_one_checkpoint(tmp_path):
    values = samples.of_step(4)
    path = save(tmp_path, 4, (values[at : at + 3] for at in (0, 3, 6, 9)), {"seen": 40})
    checkpoint = Checkpoint(path)
    checkpoint.verify()
    samples.assert_is_step(checkpoint, 4)
    assert len(list(path.glob("variables.data-*-of-00004"))) == 4
    assert len(list(path.iterdir())) == 7


def test_parts_that_are_not_all_there_are_refused_and_leave_nothing(tmp_path):
    def parts():
        yield samples.of_step(4)[:3]
        raise UnusableCheckpointError("it is damaged")

    with pytest.raises(OSError, match="step 4 could not be saved in .*: it is damaged"):
        save(tmp_path, 4, parts(), {})
    assert list(tmp_path.iterdir()) == []


def test_metrics_come_with_the_checkpoint_and_are_no_part_of_what_is_sealed(tmp_path):
    path = save(tmp_path, 3, [samples.of_step(3)], {}, metrics={"loss": np.float32(0.5)})
    assert read_metrics(path) == {"loss": 0.5}
    (path / "metrics.json").unlink()
    Checkpoint(path).verify()
    assert read_metrics(path) == {}


def test_it_knows_when_it_was_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1234.5)
    assert Checkpoint(save_step(tmp_path, 3)).saved_at == 1234.5


def test_what_is_set_aside_is_no_checkpoint_and_its_step_can_be_saved_again(tmp_path):
    for name in ("step-00000003.damaged", "step-00000003.damaged-2"):
        assert set_aside(save_step(tmp_path, 3)) == tmp_path / name
        assert latest(tmp_path) is None
    samples.assert_is_step(Checkpoint(tmp_path / name), 3)
