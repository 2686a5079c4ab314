"""Batch sizes in sequences and in tokens, of the batch and of a replica."""

from __future__ import annotations

import pytest

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import base_hparams
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs, training_inputs
from tests.trainer.conftest import PROBLEM


def hparams(text: str) -> HParams:
    made = base_hparams()
    made.parse("max_length=128,mesh_shape=data:4;model:2")
    made.parse(text)
    return made


@pytest.mark.parametrize(
    ("size", "unit", "sequences"),
    [
        (64, "sequences_per_batch", 64),
        (8192, "tokens_per_batch", 64),
        (16, "sequences_per_replica", 64),
        (2048, "tokens_per_replica", 64),
    ],
)
def test_a_batch_may_be_counted_in_four_ways(size, unit, sequences):
    assert sequences_per_batch(hparams(f"batch_size={size},batch_size_unit={unit}")) == sequences


@pytest.mark.parametrize("changes", ["layout=heads:model", "mesh_shape=model:2", "mesh_shape="])
def test_where_no_axis_splits_the_batch_there_is_one_replica(changes):
    text = f"batch_size=16,batch_size_unit=sequences_per_replica,{changes}"
    assert sequences_per_batch(hparams(text)) == 16


def test_tokens_are_those_of_whole_sequences():
    with pytest.raises(ValueError, match="batch_size=8200.*max_length=128.*use 8192 or 8320"):
        sequences_per_batch(hparams("batch_size=8200,batch_size_unit=tokens_per_batch"))
    with pytest.raises(ValueError, match="use 128$"):
        sequences_per_batch(hparams("batch_size=100,batch_size_unit=tokens_per_replica"))


def test_an_unknown_unit_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="'tokens_per_core'.*tokens_per_batch"):
        sequences_per_batch(hparams("batch_size_unit=tokens_per_core"))


def test_batches_have_the_size_that_is_said(data_dir):
    problem = registry.problem(PROBLEM)()
    said = hparams("batch_size=256,batch_size_unit=tokens_per_replica,max_length=64")
    assert training_inputs(problem, data_dir, said, seed=1).batch_size == 16
    inputs = evaluation_inputs(problem, data_dir, said, "test")
    assert inputs.features["targets"].shape.to_integer_list == [16, 64]
