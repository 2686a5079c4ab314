"""Converted encoder-decoder models match `transformers`."""

import copy

import numpy as np
import pytest

from t2tp.huggingface.model_directory import WEIGHTS_FILE
from t2tp.huggingface.safetensors_file import read_header
from t2tp.ops.attention.relative_bias import distance_buckets
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import LENGTH, SEQUENCE_TO_SEQUENCE

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

EACH_MODEL = pytest.mark.parametrize("name", SEQUENCE_TO_SEQUENCE)
SIZES = [12, 7, 10, 4]  # of the inputs without padding


def sources():
    tokens = np.random.default_rng(1).integers(1, their_models.VOCAB, (4, LENGTH), np.int32)
    is_real = np.arange(LENGTH) < np.array(SIZES)[:, None]
    return np.where(is_real, tokens, 0).astype(np.int32), is_real


def features():
    return {**our_models.features_of("inputs", *sources()), **our_models.features()}


def their_logits(model, targets=None):
    """Returns the logits of `transformers` in float64, for our targets or for others."""
    inputs, mask = sources()
    before = np.pad(their_models.targets() if targets is None else targets, [(0, 0), (1, 0)])
    return their_models.in_float64(model)(
        inputs, attention_mask=mask.astype(np.int32), decoder_input_ids=before[:, :-1]
    )


def copied(name):
    """Returns a copy of a Hugging Face model; the caller may change it."""
    return copy.deepcopy(their_models.loaded(name))


@pytest.mark.parametrize("mesh", [mesh for mesh in our_models.MESHES if mesh != "stage:2"])
@EACH_MODEL
def test_the_logits_are_theirs_on_any_mesh(name, mesh):
    wanted = their_logits(copied(name)).detach().numpy()
    assert np.abs(wanted).max() > 1
    got = our_models.logits(name, mesh, features())
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("buckets", [7, 18, 32, 36, 108])
def test_distances_are_in_their_buckets(buckets, both_ways):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-300, 300)
    wanted = T5Attention._relative_position_bucket(torch.tensor(distances), both_ways, buckets, 128)
    assert distance_buckets(distances, buckets, 128, both_ways).tolist() == wanted.tolist()


@EACH_MODEL
def test_fifty_tokens_of_greedy_generation_are_theirs(name):
    rows = [row[:size].tolist() for row, size in zip(sources()[0], SIZES, strict=True)]
    texts = [text.tokens for text in our_models.generated(name, "2x2", rows, 50, features())]
    logits = their_logits(copied(name), np.array(texts))
    assert logits.argmax(-1).tolist() == texts


@EACH_MODEL
def test_the_gradients_are_theirs(name):
    import torch

    model = copied(name)
    targets = torch.tensor(their_models.targets()).long()
    loss = torch.nn.functional.cross_entropy(their_logits(model).flatten(0, 1), targets.flatten())
    loss.backward()
    theirs = {key: each.grad.numpy() for key, each in model.named_parameters()}
    ours = our_models.descent(name, "2x2", features())
    assert ours.pop("loss") == pytest.approx(loss.item(), abs=1e-6)
    our_models.check_gradients(name, ours, theirs)


@EACH_MODEL
def test_there_and_back_all_tensors_are_the_same_bits_and_transformers_loads_them(name, tmp_path):
    back, source = tmp_path / "back", their_models.directory(name)
    our_models.check_tensors(our_models.run_of(name), back, read_header(source / WEIGHTS_FILE))
    model = their_models.loaded_whole(name, back)
    wanted = their_models.loaded(name).config.scale_decoder_outputs
    assert model.config.scale_decoder_outputs == wanted
