"""Several processes save together. Threads stand in for processes where only the order matters."""

import shutil

import pytest
import tensorflow as tf

from t2tp.checkpoint import Checkpoint, Slice, latest, save
from t2tp.processes.cluster import Cluster
from tests.checkpoint import samples
from tests.two_in_threads import run_two


def save_together(directory, values_of_each):
    """Saves step 5 from two processes; returns the path or error of each process."""
    return run_two(
        lambda cluster: save(
            directory, 5, [values_of_each[cluster.process_id]], {"seen": 50}, cluster=cluster
        )
    )


def test_two_threads_save_what_one_reads_back(tmp_path):
    path, same = save_together(tmp_path, samples.halves(5))
    assert path == same == tmp_path / "step-00000005"
    checkpoint = latest(tmp_path)
    samples.assert_is_step(checkpoint, 5)
    checkpoint.verify()
    assert len(list(path.glob("variables.data-*-of-00002"))) == 2


def test_all_take_part_in_the_same_exchanges(tmp_path, monkeypatch):
    called, gather = [[], []], Cluster.process_allgather

    def noted(self, name, value):
        called[self.process_id].append(name)
        return gather(self, name, value)

    monkeypatch.setattr(Cluster, "process_allgather", noted)
    save_together(tmp_path, samples.halves(5))
    names = [f"checkpoint-5-{phase}" for phase in ("begin", "write", "finish")]
    assert called == [names, names]


def test_slices_that_two_processes_both_save_are_refused_by_both(tmp_path):
    first, second = samples.halves(5)
    owner, other = save_together(tmp_path, [first, second + first[:1]])
    assert isinstance(owner, ValueError)
    assert "The 9 slices of 'table' have 216 elements" in str(owner)
    assert isinstance(other, OSError)
    assert "process 0: The 9 slices of 'table' have 216 elements" in str(other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("broken", [0, 1])
def test_a_failure_in_one_process_is_an_error_in_both(tmp_path, broken):
    parts = samples.halves(5)
    parts[broken] = [(Slice.full("bad", (3,), tf.float32), tf.zeros([2]))]
    answers = save_together(tmp_path, parts)
    assert isinstance(answers[broken], ValueError)
    assert "'bad'" in str(answers[broken])
    assert isinstance(answers[1 - broken], OSError)
    assert f"process {broken}: The slice of 'bad'" in str(answers[1 - broken])
    assert list(tmp_path.iterdir()) == []


def test_what_a_crashed_save_left_is_not_taken_for_a_part_of_the_next(tmp_path):
    parts = samples.halves(5)
    path, _ = save_together(tmp_path / "crashed", parts)
    left = tmp_path / "run" / "step-00000005.tmp"
    left.mkdir(parents=True)
    (left / "part-00001.json").write_text("{}")
    shutil.copy(path / "variables.data-00001-of-00002", left / "part-00002.data-00000-of-00001")
    broken = [parts[0], [(Slice.full("bad", (3,), tf.float32), tf.zeros([2]))]]
    owner, _ = save_together(tmp_path / "run", broken)
    assert "process 1: The slice of 'bad'" in str(owner)
    left.mkdir()
    (left / "rubbish").touch()
    path, _ = save_together(tmp_path / "run", parts)
    assert len(list(path.iterdir())) == 5
    samples.assert_is_step(Checkpoint(path), 5)


def test_no_process_takes_an_older_checkpoint_for_its_own(tmp_path):
    save_together(tmp_path, samples.halves(5))
    owner, other = save_together(tmp_path, samples.halves(5))
    assert "already saved" in str(owner)
    assert "process 0: Step 5 is already saved" in str(other)
    samples.assert_is_step(latest(tmp_path), 5)
