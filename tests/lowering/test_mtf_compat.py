"""The transformer of the installed mesh-tensorflow runs on our operations and our engine."""

import functools
import importlib
import importlib.util
import sys
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf

BATCH, LENGTH, BEAM = mtf.Dimension("batch", 4), mtf.Dimension("length", 6), 4
LAYOUTS = [("", ""), ("data:2;model:2", "batch:data;heads:model;d_ff:model;vocab:model")]
INPUTS = np.array([[2, 3, 4, 1, 0, 0], [7, 7, 1, 0, 0, 0], [5, 6, 2, 8, 9, 1], [3, 1, 0, 0, 0, 0]])
TARGETS = np.array([[3, 3, 1, 0, 0, 0], [7, 8, 9, 2, 3, 1], [5, 1, 0, 0, 0, 0], [9, 8, 7, 6, 5, 1]])


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """Replaces mesh-tensorflow's operations by ours during this module's tests."""
    names = {name for name in sys.modules if name.startswith("mesh_tensorflow")}
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "meta_path", list(sys.meta_path)):
        importlib.import_module("t2tp.mtf_compat")
        importlib.import_module("mesh_tensorflow.transformer")
        yield importlib.import_module("mesh_tensorflow")
    assert {name for name in sys.modules if name.startswith("mesh_tensorflow")} == names


def test_a_program_that_imports_mesh_tensorflow_gets_our_operations(theirs):
    from mesh_tensorflow import layers
    from mesh_tensorflow.transformer import transformer, utils

    assert theirs is not sys.modules["t2tp.mtf"] and theirs.transformer.transformer is transformer
    assert transformer.mtf is theirs and utils.mtf is theirs
    assert theirs.gather is mtf.gather and theirs.where is mtf.where
    assert layers is theirs.layers and layers.mtf.einsum is mtf.einsum


def test_what_is_lent_is_taken_back(theirs):
    assert not hasattr(tf1, "estimator") and not hasattr(tf, "estimator")
    assert "tensorflow.compat.v1.estimator" not in sys.modules
    transformer = theirs.transformer.transformer
    assert transformer.tf_estimator.ModeKeys.PREDICT == "infer"
    with pytest.raises(AttributeError, match="EstimatorSpec.*porting.md"):
        transformer.tf_estimator.EstimatorSpec  # noqa: B018


def test_lowering_by_hand_is_refused(theirs):
    with pytest.raises(NotImplementedError, match="run by t2tp.Program"):
        theirs.Lowering(None, {})
    with pytest.raises(NotImplementedError, match="run by t2tp.Program"):
        theirs.placement_mesh_impl.PlacementMeshImpl("a:2", "b:a", ["", ""])


def test_a_package_that_is_missing_is_named(theirs):
    with (
        mock.patch.dict(sys.modules, {"gin": None}),
        pytest.raises(
            ModuleNotFoundError, match="evolved_transformer needs gin.*pip install gin-c"
        ),
    ):
        importlib.import_module("mesh_tensorflow.transformer.evolved_transformer")


@pytest.mark.skipif(importlib.util.find_spec("ortools") is not None, reason="ortools is there")
def test_auto_mtf_says_that_it_needs_ortools(theirs):
    with pytest.raises(ModuleNotFoundError, match="auto_mtf needs ortools.*pip install ortools"):
        importlib.import_module("mesh_tensorflow.auto_mtf")


def make_stack(theirs, with_encoder=False):
    layers = theirs.transformer.transformer_layers
    attention = {"num_heads": 2, "key_value_size": 4, "dropout_rate": 0.1}
    kinds = [[layers.SelfAttention, attention]]
    if with_encoder:
        kinds.append([layers.EncDecAttention, attention])
    kinds.append([layers.DenseReluDense, {"hidden_size": 16, "dropout_rate": 0.1}])
    transformer = theirs.transformer.transformer
    stack = functools.partial(transformer.LayerStack, dropout_rate=0.1, norm_epsilon=1e-6)
    return transformer.make_layer_stack(kinds, layer_stack_cls=stack, num_layers=1)


def make_part(theirs, name, **changes):
    options = {
        "d_model": 8,
        "input_vocab_size": 10,
        "output_vocab_size": 10,
        "autoregressive": True,
        "max_length": LENGTH.size,
        "vocab_divisor": 2,
        "name": name,
        "layer_stack": make_stack(theirs, with_encoder=name == "decoder"),
    }
    return theirs.transformer.transformer.Unitransformer(**(options | changes))


def language_model_step(theirs, mesh, features):
    """Trains a language model with Adafactor, and decodes with and without a prompt."""
    model = make_part(theirs, "transformer")
    targets = features["targets"]
    shifted = theirs.transformer.transformer.autoregressive_inputs(targets)
    logits, loss = model.call_simple(shifted, targets, compute_loss=True, mode="train")
    empty = mtf.zeros(mesh, targets.shape, tf.int32)
    greedy = model.sample_autoregressive(empty, has_partial_sequences=False)
    sampled = model.sample_autoregressive(empty, has_partial_sequences=True, temperature=0.9)
    again = theirs.transformer.transformer.autoregressive_inputs(greedy)
    retold, _ = model.call_simple(again, None, compute_loss=False, mode="infer")
    gradients = mtf.gradients([loss], [v.outputs[0] for v in mesh.graph.trainable_variables])
    optimizer = theirs.optimize.AdafactorOptimizer(learning_rate=0.01)
    optimizer.apply_grads(gradients, mesh.graph.trainable_variables)
    outputs = {"logits": logits, "loss": loss, "greedy": greedy, "sampled": sampled}
    return {**outputs, "retold": retold}


def run(step, layout, steps=1):
    shape = mtf.Shape([BATCH, LENGTH])
    features = {name: t2tp.Feature(shape, tf.int32) for name in ("inputs", "targets")}
    program = t2tp.Program(step, features, mesh_shape=layout[0], layout=layout[1])
    given = {"inputs": INPUTS, "targets": TARGETS}
    return [dict(program(given, step=number)) for number in range(steps)]


@pytest.mark.slow
def test_its_language_model_learns_and_decodes_alike_on_any_layout(theirs):
    one, split = [
        run(functools.partial(language_model_step, theirs), layout, steps=2) for layout in LAYOUTS
    ]
    assert not np.allclose(one[0]["retold"], one[1]["retold"], atol=0.01)
    for first, other in zip(one, split, strict=True):
        until_end = np.cumsum(first["greedy"] == 1, -1) - (first["greedy"] == 1) == 0
        best = first["retold"].argmax(-1)
        np.testing.assert_array_equal(first["greedy"][until_end], best[until_end])
        np.testing.assert_allclose(other["loss"], first["loss"], rtol=1e-4)
        np.testing.assert_allclose(other["logits"], first["logits"], atol=1e-3)
        np.testing.assert_array_equal(other["greedy"], first["greedy"])
        np.testing.assert_array_equal(other["sampled"], first["sampled"])


def translation_step(theirs, mesh, features):
    """Decodes with beam search and greedily, and returns the logits of both hypotheses."""
    encoder = make_part(theirs, "encoder", autoregressive=False, output_vocab_size=None)
    model = theirs.transformer.transformer.Bitransformer(encoder, make_part(theirs, "decoder"))
    inputs = features["inputs"]
    beams = model.decode(inputs, beam_size=BEAM, alpha=0.0)
    outputs = {"best": beams, "greedy": model.decode(inputs)}
    for name in ("best", "greedy"):
        logits, _ = model.call_simple(inputs, outputs[name], compute_loss=False, mode="infer")
        outputs[f"{name}_log_probs"] = mtf.log_softmax(logits, logits.shape[-1])
    return outputs


def log_prob(values, name):
    """Returns the log-probability of each sequence, including its end."""
    ids = values[name]
    picked = np.take_along_axis(values[f"{name}_log_probs"], ids[..., None], -1)[..., 0]
    return (picked * (ids > 0)).sum(-1)


@pytest.mark.ci_only
@pytest.mark.slow
def test_its_beam_search_finds_the_same_on_any_layout(theirs):
    one, split = [run(functools.partial(translation_step, theirs), layout)[0] for layout in LAYOUTS]
    assert one["best"].shape == (BATCH.size, LENGTH.size)
    # Greedy decoding may write padding tokens, and may not end.
    ended = (one["greedy"] > 0).all(-1) & (one["greedy"][:, -1] == 1)
    assert ended.any()
    assert (log_prob(one, "best") >= log_prob(one, "greedy") - 1e-5)[ended].all()
    np.testing.assert_array_equal(split["best"], one["best"])
    np.testing.assert_array_equal(split["greedy"], one["greedy"])
    np.testing.assert_allclose(log_prob(split, "best"), log_prob(one, "best"), rtol=1e-4)
