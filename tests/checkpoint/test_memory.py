"""A file in memory is what was written, or is refused."""

from __future__ import annotations

import pytest
import tensorflow as tf

from t2tp.checkpoint import Slice, memory
from t2tp.checkpoint.errors import DamagedCheckpointError

VALUES = [
    (Slice("w", (4, 2), (2, 0), (2, 2), tf.bfloat16), tf.constant([[1, 2], [3, 4]], tf.bfloat16)),
    (Slice("w", (4, 2), (0, 0), (2, 2), tf.bfloat16), tf.constant([[5, 6], [7, 8]], tf.bfloat16)),
    (Slice("step", (), (), (), tf.int64), tf.constant(7, tf.int64)),
    (Slice("flags", (3,), (0,), (3,), tf.bool), tf.constant([True, False, True])),
    (Slice("none", (0,), (0,), (0,), tf.float32), tf.zeros([0])),
]
METADATA = {"mesh_shape": "data:2", "random_seed": 3}


def test_slices_come_back(tmp_path):
    memory.write(tmp_path / "part", VALUES, METADATA)
    metadata, values = memory.read(tmp_path / "part")
    assert metadata == METADATA
    assert list(values) == [(each.name, each.begin) for each, _ in VALUES]
    for (each, value), found in zip(VALUES, values.values(), strict=True):
        assert found.dtype == each.dtype and found.numpy().tobytes() == value.numpy().tobytes()


def test_any_changed_byte_and_any_truncation_are_noticed(tmp_path):
    path = tmp_path / "part"
    memory.write(path, VALUES, METADATA)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 64
        for wrong in (bytes(damaged), content[:position]):
            path.write_bytes(wrong)
            with pytest.raises(DamagedCheckpointError):
                memory.read(path)
    path.unlink()
    with pytest.raises(DamagedCheckpointError, match="No such file"):
        memory.read(path)


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path):
    with pytest.raises(IsADirectoryError):
        (tmp_path / "part").mkdir()
        memory.write(tmp_path / "part", VALUES, METADATA)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
