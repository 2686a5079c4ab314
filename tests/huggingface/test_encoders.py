"""Converted text and image encoders match `transformers`."""

import copy
import shutil

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.huggingface.safetensors_file import read_header, write
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import ENCODERS, LENGTH, VOCAB

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

EACH_MODEL = pytest.mark.parametrize("name", ENCODERS)
SIZES = [12, 7, 10, 4]  # of the texts without padding
KINDS = {
    "batch": "batch:4",
    "tokens": f"batch:4;length:{LENGTH}",
    "images": "batch:4;height:8;width:12;channels:3",
}


def texts(prefix):
    """Returns features of texts with two token types, and the same inputs for `transformers`."""
    draw = np.random.default_rng(2)
    is_real = np.arange(LENGTH) < np.array(SIZES)[:, None]
    tokens = np.where(is_real, draw.integers(1, VOCAB, (4, LENGTH)), 0).astype(np.int32)
    types = draw.integers(0, 2, (4, LENGTH)).astype(np.int32)
    ours = {**our_models.features_of(prefix, tokens, is_real), f"{prefix}_types": types}
    theirs = {"input_ids": tokens, "attention_mask": is_real, "token_type_ids": types}
    return ours, theirs


def images(hparams):
    pixels = np.random.default_rng(3).uniform(size=(4, 8, 12, 3)).astype(np.float32)
    mean, std = np.float32(hparams.image_mean), np.float32(hparams.image_std)
    wide = pixels.astype(np.float64)
    normalized = (wide - mean) / std if hparams.image_std else wide
    return {"inputs": pixels}, {"pixel_values": normalized.transpose(0, 3, 1, 2)}


def our_logits(name, mesh, fed):
    made = our_models.model_of(name)

    def kind(key, value):
        named = {1: KINDS["batch"], 2: KINDS["tokens"], 4: KINDS["images"]}[value.ndim]
        return t2tp.Feature(named, tf.as_dtype(value.dtype))

    def step(on_mesh, features):
        masked = "targets" in fed
        of_features = made.token_logits if masked else made.class_logits
        return {"logits": of_features(on_mesh, features)}

    kinds = {key: kind(key, value) for key, value in fed.items()}
    return our_models.restored(name, mesh, step, kinds)(fed)["logits"]


def their_logits(name, given):
    """Returns the logits of `transformers` in float64."""
    inputs, *_ = given.values()
    others = {key: value for key, value in given.items() if value is not inputs}
    model = copy.deepcopy(their_models.loaded(name))
    return their_models.in_float64(model)(inputs, **others).detach().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", our_models.MESHES)
@EACH_MODEL
def test_the_logits_are_theirs_on_any_mesh(name, mesh):
    if name.startswith("vit") and mesh == "seq:2":
        pytest.skip("the patches and the class token are an odd number")

    is_masked = "masked" in name
    if name.startswith("vit"):
        fed, given = images(our_models.model_of(name).hparams)
    else:
        fed, given = texts("targets" if is_masked else "inputs")
    wanted = their_logits(name, given)
    got = our_logits(name, mesh, fed)[..., : wanted.shape[-1]]
    if is_masked:  # Logits at padding have no meaning.
        is_real = given["attention_mask"]
        got, wanted = got[is_real], wanted[is_real]
    assert np.abs(wanted).max() > 0.4
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@EACH_MODEL
def test_there_and_back_all_tensors_are_the_same_bits_and_transformers_loads_them(name, tmp_path):
    our_models.check_there_and_back(name, tmp_path / "back")
    their_models.loaded_whole(name, tmp_path / "back")


@EACH_MODEL
def test_a_run_that_was_made_of_no_directory_says_what_it_is_in_its_config(name, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(our_models.run_of(name), run)
    shutil.rmtree(run / "huggingface")
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}") == 0
    model, theirs = their_models.loaded_whole(name, out), their_models.loaded(name)
    assert model.config.num_labels == theirs.config.num_labels
    for (key, got), wanted in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert got.equal(wanted), key


def test_the_mask_is_that_of_the_tokenizer():
    assert our_models.model_of("bert_masked").hparams.mask_token_id == their_models.MASK
    made = our_models.model_of("bert_masked_relu")
    with pytest.raises(ValueError, match="has all 53 tokens of the model"):
        type(made)(made.hparams, {"targets": VOCAB})


def check_changed(name, tmp_path, new_names, changed):
    """Converts a model's tensors with changed names and additional tensors there and back.

    Args:
      new_names: name -> new name.
      changed: name -> shape of an additional tensor of zeros; None to leave the tensor out.
    """
    source, new, run = their_models.directory(name), tmp_path / "new", tmp_path / "run"
    new.mkdir()
    shutil.copy(source / "config.json", new)
    tensors = read_header(source / "model.safetensors")
    values = {new_names.get(key, key): each.opened() for key, each in tensors.items()}
    for key, shape in changed.items():
        if shape is None:
            del values[key]
        else:
            values[key] = np.zeros(shape, np.float32)
    write(new / "model.safetensors", values)
    assert our_models.convert(f"--from_hf={new}", f"--output_dir={run}") == 0
    our_models.check_tensors(run, tmp_path / "back", tensors)


def test_berts_first_names_and_other_heads(tmp_path):
    tensors = read_header(their_models.directory("bert_masked") / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    names = {key: key.replace(new, old[new]) for key in tensors for new in old if new in key}
    others = {"bert.pooler.dense.weight": (24, 24), "cls.seq_relationship.bias": (2,)}
    check_changed("bert_masked", tmp_path, names, others)


BIASES = [{"cls.predictions.decoder.bias": None}, {"cls.predictions.bias": (VOCAB,)}]


@pytest.mark.parametrize("changed", BIASES)
def test_one_of_the_two_biases_of_untied_logits_is_enough(changed, tmp_path):
    """Older files lack the decoder's bias; newer files also contain a bias that is not used."""
    check_changed("bert_masked_untied", tmp_path, {}, changed)


def test_another_number_of_classes_and_another_image_are_refused_in_words():
    made = our_models.model_of("vit")
    with pytest.raises(ValueError, match="has 10 classes and the model's num_classes is 3"):
        _ = type(made)(made.hparams, {"targets": 10}).classes
    kind = t2tp.Feature("batch:4;height:8;width:8;channels:3")
    with pytest.raises(ValueError, match=r"shape \[8, 8, 3\] and the model's .* \[8, 12, 3\]"):
        t2tp.Program(lambda mesh, fed: {"logits": made.class_logits(mesh, fed)}, {"inputs": kind})
