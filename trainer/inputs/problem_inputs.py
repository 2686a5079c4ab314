"""Inputs from the prepared data of a problem."""

from collections.abc import Mapping, Sequence
from os import PathLike

import tensorflow as tf
from absl import logging

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.models.model import EXAMPLE_INDEX
from t2tp.problems.data.batch_stream import INDEX_SPEC, FeatureSpec, OnePassStream
from t2tp.problems.problem import Problem
from t2tp.program.program import Feature
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.inputs.inputs import Inputs, feature_of


def training_inputs(
    problem: Problem, data_dir: str | PathLike[str], hparams: HParams, layout: Layout, seed: int
) -> Inputs:
    """Returns the endless, shuffled batches of the training split, whose data must be prepared.

    Reads `max_length` and the hparams of `sequences_per_batch`. `seed` determines the order.

    Raises:
      FileNotFoundError, ValueError: see `Problem.stream` and `sequences_per_batch`.
    """
    expected = hparams.copy()
    problem.change_hparams(expected, data_dir)
    first, read = (each.values().get("bos_token_id") for each in (expected, hparams))
    if first != read:
        logging.warning(
            f"conversations of {problem.name} begin with token {first}, and the model reads"
            f" bos_token_id={read} first: train with --hparams=bos_token_id={first}"
        )
    size, length = sequences_per_batch(hparams, layout), hparams.max_length
    stream = problem.stream(data_dir, problem.splits[0], batch_size=size, length=length, seed=seed)
    kinds = [_features(problem.features, sizes) for sizes in stream.shapes()]
    return Inputs(kinds[0], stream, problem.counts, kinds[1:], problem.metric_names)


def evaluation_inputs(
    problem: Problem, data_dir: str | PathLike[str], hparams: HParams, layout: Layout, split: str
) -> Inputs:
    """Returns one pass over a split, in order; rows that pad the last batch have no effect.

    Batches also have the feature `example_index`; see `t2tp.models.model`. Any split is allowed,
    even the training split. Arguments and errors as for `training_inputs`.

    Raises:
      FileNotFoundError, ValueError: see `Problem.stream` and `sequences_per_batch`.
    """
    size, length = sequences_per_batch(hparams, layout), hparams.max_length
    problem.check_split(split)
    problem.check_prepared(data_dir)
    source = problem.examples(data_dir, split, length)
    return one_pass_inputs(problem, OnePassStream(source, size, EXAMPLE_INDEX))


def one_pass_inputs(problem: Problem, stream: OnePassStream) -> Inputs:
    """Returns the inputs of a stream that has the feature `example_index`."""
    (sizes,) = stream.shapes()
    specs = {**problem.features, EXAMPLE_INDEX: INDEX_SPEC}
    return Inputs(_features(specs, sizes), stream, problem.counts)


def _features(
    specs: Mapping[str, FeatureSpec], sizes: Mapping[str, Sequence[int]]
) -> dict[str, Feature]:
    """Returns features of the given sizes in named dimensions."""
    return {
        name: feature_of(spec.dimensions, sizes[name], tf.as_dtype(spec.dtype))
        for name, spec in specs.items()
    }
