"""The Estimator with a `tf.data.Dataset`, and with a model function that also has `config`."""

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from t2tp import registry
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.inputs.datasets import dataset_inputs
from t2tp.trainer.run_config import RunConfig
from tests.page_blocks import blocks
from tests.trainer import toy
from tests.trainer.hooks.events import read_scalars
from tests.trainer.toy_estimator import estimator

DIMENSIONS = {"x": "batch d_in", "y": "batch d_out"}


def batches(count: int) -> dict[str, np.ndarray]:
    stream = toy.Stream()
    whole = [stream[step] for step in range(count)]
    return {name: np.concatenate([batch[name] for batch in whole]) for name in DIMENSIONS}


def input_fn(count: int = 12):
    dataset = tf.data.Dataset.from_tensor_slices(batches(count))
    return dataset_inputs(dataset.batch(toy.BATCH, drop_remainder=True), DIMENSIONS)


def test_a_dataset_trains_like_a_stream_and_is_skipped_when_it_goes_on(tmp_path, monkeypatch):
    estimator(tmp_path / "stream").train(toy.inputs(), 9)
    estimator(tmp_path / "dataset").train(input_fn, 5)
    said = []
    monkeypatch.setattr(logging, "info", lambda text, *given: said.append(text % given))
    estimator(tmp_path / "dataset").train(input_fn, 9)
    assert "skipping the first 5 batches of the data" in said
    assert read_scalars(tmp_path / "dataset")["loss"] == read_scalars(tmp_path / "stream")["loss"]


@pytest.mark.parametrize("sizes", [(4, 16, 8), (8, 4, 8)])
def test_another_batch_size_neither_repeats_nor_skips_rows(sizes):
    rows = {"x": np.arange(96)[:, None]}
    before, read = None, []
    for leg, batch_size in enumerate(sizes):
        dataset = tf.data.Dataset.from_tensor_slices(rows).batch(batch_size, drop_remainder=True)
        inputs = dataset_inputs(dataset, {"x": "batch d_in"}).resumed(before, 2 * leg)
        before = inputs.batch_sizes
        read += [inputs.stream[step]["x"] for step in (2 * leg, 2 * leg + 1)]
    assert np.concatenate(read).ravel().tolist() == list(range(2 * sum(sizes)))


def test_a_generator_is_evaluated_for_a_number_of_batches(tmp_path):
    """The dataset of an iterator, as in docs/trainer.md, has no length."""
    batch = toy.Stream()[0]
    signature = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in batch.items()}
    dataset = tf.data.Dataset.from_generator(lambda: iter([batch] * 3), output_signature=signature)
    inputs = dataset_inputs(dataset, DIMENSIONS)
    estimator(tmp_path).train(inputs, 1)
    with pytest.raises(ValueError, match="say how many to evaluate"):
        estimator(tmp_path).evaluate(inputs)
    assert estimator(tmp_path).evaluate(inputs, 2)["error"] > 0


def test_a_dataset_is_evaluated_to_its_end(tmp_path):
    trained = estimator(tmp_path)
    trained.train(input_fn, 2)
    assert trained.evaluate(lambda: input_fn(5)) == trained.evaluate(toy.inputs())


def test_data_that_end_too_early_are_said(tmp_path):
    with pytest.raises(ValueError, match="the data ended before batch 3: repeat them"):
        estimator(tmp_path).train(lambda: input_fn(3), 5)


REFUSED = [
    (lambda d: d.batch(8, drop_remainder=True), {"x": "batch d_in"}, "elements have x, y"),
    (lambda d: d.batch(8, drop_remainder=True), {"x": "batch", "y": "batch"}, "1 are named"),
    (lambda d: d.batch(8), DIMENSIONS, "drop_remainder=True"),
]


@pytest.mark.parametrize(("change", "dimensions", "says"), REFUSED)
def test_dimensions_that_do_not_fit_are_refused(change, dimensions, says):
    dataset = change(tf.data.Dataset.from_tensor_slices(batches(1)))
    with pytest.raises(ValueError, match=says):
        dataset_inputs(dataset, dimensions)


def test_a_model_function_that_takes_the_config_gets_it(tmp_path):
    seen = []

    def model_fn(mesh, features, mode, hparams, config):
        seen.append(config.random_seed)
        return toy.model_fn(mesh, features, mode, hparams)

    config = RunConfig(str(tmp_path), random_seed=7)
    Estimator(model_fn, config, {"learning_rate": 0.05}).train(toy.inputs(), 1)
    assert set(seen) == {7}


def test_the_documented_model_function_learns(tmp_path, monkeypatch, capsys):
    (code,) = [block for block in blocks("trainer.md", "python") if "def model_fn" in block]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "trainer.md", "exec"), {})
    assert capsys.readouterr().out.startswith("{'error': ")
    loss = read_scalars(tmp_path / "regression")["loss"]
    assert loss[100] < 1e-3


def test_the_documented_ranged_set_is_one():
    (code,) = [block for block in blocks("tuning.md", "python") if "ranged_hparams" in block]
    exec(compile(code, "tuning.md", "exec"), {})
    drawn = registry.ranged_hparams("around_the_tiny_one").sample_trial(0)
    always = {"learning_rate_constant", "num_hidden_layers", "optimizer"}
    assert drawn["optimizer"] == "sgd" and set(drawn) == always | {"optimizer_momentum"}
