"""Real runs that are resumed with other batch sizes, meshes and microbatches."""

import pytest

from t2tp.problems.data.batch_stream import ShuffledStream
from tests.trainer.tiny_experiment import experiment

PER_REPLICA = "sequences_per_replica"
# For each run: the changes of hparams and the last step of each of its trainings.
RUNS = [
    [("batch_size=8", 3), ("batch_size=4", 5), ("batch_size=4", 6), ("batch_size=12", 8)],
    [
        ("batch_size=8,microbatches=2", 2),
        ("batch_size=4,mesh_shape=data:2;model:2,layout=batch:data;d_ff:model", 5),
        (f"batch_size=2,batch_size_unit={PER_REPLICA},mesh_shape=data:4,layout=batch:data", 7),
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize("legs", RUNS, ids=["batch sizes", "meshes"])
def test_a_resumed_run_reads_its_rows_in_order(tmp_path, data_dir, monkeypatch, legs):
    read: dict[int, list[int]] = {}  # step -> its examples
    at = ShuffledStream.__getitem__

    def noted(stream, step):
        batch = at(stream, step)
        read[step] = batch.examples.tolist()
        return batch

    monkeypatch.setattr(ShuffledStream, "__getitem__", noted)
    for changes, steps in legs:
        run = experiment(tmp_path, data_dir, changes, train_steps=steps)
        run.train()
    rows = [n for step in sorted(read) if step < legs[-1][1] for n in read[step]]
    reference = run.spec.problem.stream(data_dir, "train", batch_size=1, length=32, seed=0)
    assert rows == [at(reference, n).examples[0] for n in range(len(rows))]
