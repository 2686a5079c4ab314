"""Batch sizes in sequences and in tokens; runs that are resumed with other ones."""

import pytest

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import base_hparams
from t2tp.mesh.layout import Layout
from t2tp.problems.data.batch_stream import ShuffledStream
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs, training_inputs
from tests.trainer.conftest import PROBLEM
from tests.trainer.tiny_experiment import experiment

ONE_REPLICA = ("layout=heads:model", "mesh_shape=model:2", "mesh_shape=")


def hparams(text: str) -> HParams:
    made = base_hparams()
    made.parse("max_length=128,mesh_shape=data:4;model:2")
    made.parse(text)
    return made


def sequences_of(text: str) -> int:
    made = hparams(text)
    return sequences_per_batch(made, Layout.from_hparams(made))


CASES = [
    (64, "sequences_per_batch", 64),
    (8192, "tokens_per_batch", 64),
    (16, "sequences_per_replica", 64),
    (2048, "tokens_per_replica", 64),
    # No axis splits the batch, so there is one replica.
    *((16, f"sequences_per_replica,{change}", 16) for change in ONE_REPLICA),
]


@pytest.mark.parametrize(("size", "unit", "sequences"), CASES)
def test_a_batch_may_be_counted_in_four_ways(size, unit, sequences):
    assert sequences_of(f"batch_size={size},batch_size_unit={unit}") == sequences


REFUSED = [
    ("8200,batch_size_unit=tokens_per_batch", "=8200.*max_length=128.*use 8192 or 8320"),
    ("100,batch_size_unit=tokens_per_replica", "use 128$"),
    ("64,batch_size_unit=tokens_per_core", "'tokens_per_core'.*tokens_per_batch"),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_parts_of_sequences_and_unknown_units_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        sequences_of(f"batch_size={changes}")


def test_batches_have_the_size_that_is_said(data_dir):
    problem = registry.problem(PROBLEM)()
    said = hparams("batch_size=256,batch_size_unit=tokens_per_replica,max_length=64")
    layout = Layout.from_hparams(said)
    assert training_inputs(problem, data_dir, said, layout, seed=1).batch_size == 16
    inputs = evaluation_inputs(problem, data_dir, said, layout, "test")
    assert inputs.features["targets"].shape.to_integer_list == [16, 64]


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
