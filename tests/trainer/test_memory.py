"""The memory of a training: it is checked before the first step, and does not grow."""

import ctypes
from collections.abc import Mapping

import numpy as np
import pytest

from t2tp.processes.libc_calls import libc
from t2tp.program.program import Program
from t2tp.trainer.hooks.hook import Hook, Training
from tests.trainer import toy
from tests.trainer.toy_estimator import Note, estimator

BEGIN, STEPS, SAVE = 500, 1500, 100


class Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "a", "b", "c", "hblkhd", "d", "e", "uordblks", "fordblks", "f")
    ]


class Watch(Hook):
    """Records the allocated bytes, and the bytes of glibc's heaps including free blocks."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        if training.steps_done % SAVE == SAVE // 2:  # Between two saves.
            float(outputs["loss"])
            info = libc.mallinfo2()
            self.seen[training.steps_done] = (info.uordblks + info.hblkhd, info.arena)


def test_a_step_that_needs_more_than_the_memory_is_refused_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(Program, "device_memory", 100.0)
    note = Note()
    with pytest.raises(MemoryError, match=r"needs \d+ B .* has 100 B .*smaller batch"):
        estimator(tmp_path).train(toy.inputs(), 4, [note])
    assert not [what for what, _ in note.calls if what == "before"]


@pytest.mark.slow
@pytest.mark.ci_only
def test_memory_does_not_grow_with_the_steps(tmp_path):
    libc.mallinfo2.restype = Mallinfo
    watch = Watch()
    settings = {"log_step_count_steps": 10, "save_checkpoints_steps": SAVE}
    estimator(tmp_path, **settings).train(toy.inputs(), STEPS, [watch])
    first, *_, last = (seen for step, seen in watch.seen.items() if step > BEGIN)
    steps = STEPS - BEGIN - SAVE
    assert (last[0] - first[0]) / steps < 300  # Bytes a step.
    assert last[1] - first[1] < 20 << 20
