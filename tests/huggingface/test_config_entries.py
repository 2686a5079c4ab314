"""Each entry of a config.json is honoured or refused, or `transformers` ignores it too."""

import json
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest

from t2tp.huggingface.model_directory import ModelDirectory
from tests.huggingface import our_models, test_encoders, test_sequence_to_sequence, their_models

transformers = pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

_LANGUAGE_MODELS = [their_models.random_model(kind, 0) for kind in their_models.KINDS]
MODELS = [*_LANGUAGE_MODELS, "t5", "bert_masked", "bert_classifier", "vit"]
EARLY = tuple(_LANGUAGE_MODELS[:1])  # `make test` tests these models.

# Entries that some model type has, or had; each is tried with all types.
MORE: dict[str, Any] = dict(is_causal=False, is_decoder=True, is_encoder_decoder=True)
MORE |= dict(add_cross_attention=True, use_bidirectional_attention=True, an_entry_of_tomorrow=1)
MORE |= dict(hidden_activation="relu", dense_act_fn="silu", is_gated_act=True)
MORE |= dict(sliding_window=3, max_window_layers=1, use_sliding_window=True, attention_chunk_size=2)
MORE |= dict(layer_types=["sliding_attention", "full_attention"], sliding_window_pattern=2)
MORE |= dict(attention_bias=True, mlp_bias=True, head_dim=2, hidden_size=8, n_embd=8)
MORE |= dict(num_experts=2, embedding_size=8, tie_word_embeddings=False)
MORE |= dict(rope_theta=77.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
MORE |= dict(partial_rotary_factor=0.5, original_max_position_embeddings=4)
MORE |= dict(rope_local_base_freq=7.0, no_rope_layers=[1, 0], no_rope_layer_interval=3)
MORE |= dict(position_embedding_type="relative_key", query_pre_attn_scalar=7, clip_qkv=0.1)
MORE |= dict(final_logit_softcapping=0.5, attn_logit_softcapping=0.5, scale_decoder_outputs=False)
MORE |= dict(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False)
MORE |= dict(num_labels=1, problem_type="regression")
TEXTS = ["relu", "silu", "gelu", "gelu_new", "gated-silu"]
# Entries that `transformers` needs to load the directory, and the token that the test feeds first.
_FIXED = ("architectures", "model_type", "transformers_version", "dtype", "decoder_start_token_id")


def others(value: Any) -> list[Any]:
    """Returns other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value + 2]
    if isinstance(value, float):
        return [3 * value + 0.25]
    if isinstance(value, str):
        return TEXTS
    if isinstance(value, dict):
        return [{**value, name: new} for name, old in value.items() for new in others(old)]
    return []


def changes(name: str) -> list[dict[str, Any]]:
    """Returns changes, each of one entry."""
    config = json.loads((their_models.directory(name) / "config.json").read_text())
    known = {**their_models.loaded(name).config.to_dict(), **config}
    turn = MODELS.index(name) % len(TEXTS)  # Model types begin with different texts.
    texts = TEXTS[turn:] + TEXTS[:turn]
    changed = [
        {key: new}
        for key, value in known.items()
        for new in (texts if isinstance(value, str) else others(value))
    ]
    changed += [{key: value} for key, value in MORE.items() if config.get(key) != value]
    return [each for each in changed if not each.keys() & set(_FIXED)]


def their_logits(name: str, base: str) -> np.ndarray:
    model = test_sequence_to_sequence.copied(name)
    if base == "t5":
        return test_sequence_to_sequence.their_logits(model).detach().numpy()
    if base in _LANGUAGE_MODELS:
        inputs = their_models.with_first(name, their_models.targets()[:, :-1])
        return their_models.in_float64(model)(inputs).detach().numpy()
    given = encoder_features(base)[1]
    logits = test_encoders.their_logits(name, given)
    return logits[given["attention_mask"]] if base == "bert_masked" else logits


def encoder_features(base: str):
    if base == "vit":
        return test_encoders.images(our_models.model_of(base).hparams)
    return test_encoders.texts("targets" if base == "bert_masked" else "inputs")


def our_logits(name: str, base: str) -> np.ndarray:
    if base == "t5":
        return our_models.logits(name, "one device", test_sequence_to_sequence.features())
    if base in _LANGUAGE_MODELS:
        return our_models.logits(name, "one device")
    fed, given = encoder_features(base)
    logits = test_encoders.our_logits(name, "one device", fed)
    return logits[given["attention_mask"]] if base == "bert_masked" else logits


def accepted(name: str):
    """Returns our hparams of a directory, or None if the directory is refused."""
    try:
        source = ModelDirectory.from_path(their_models.directory(name))
        hparams = source.hparams()
        source.variables(hparams)
    except ValueError:
        return None
    return hparams


EACH_BASE = [
    base if base in EARLY else pytest.param(base, marks=pytest.mark.ci_only) for base in MODELS
]


@pytest.mark.slow
@pytest.mark.parametrize("base", EACH_BASE)
def test_what_is_accepted_has_the_logits_of_transformers(base):
    logging.disable(logging.WARNING)
    wanted, before, idle = their_logits(base, base), accepted(base), 0
    model_type = ModelDirectory.from_path(their_models.directory(base)).model_type
    changed = changes(base)
    assert base not in _LANGUAGE_MODELS or len(changed) >= 100
    compared = Counter[str]()
    for change in changed:
        ((key, value),) = change.items()
        # Of numbers and texts, more values would only repeat the comparison.
        if compared[key] >= {int: 1, str: 2}.get(type(value), len(changed)):
            continue
        name = their_models.with_entries(base, change)
        hparams = accepted(name)
        if hparams is None:
            continue
        try:
            theirs = their_logits(name, base)
        except Exception:  # `transformers` refuses the change.
            continue
        if model_type.different(model_type.config(before), hparams):
            ours = our_logits(name, base)[..., : theirs.shape[-1]]
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_allclose(theirs, wanted, rtol=0, atol=1e-9, err_msg=name)
            idle += 1
        compared[key] += 1
    logging.disable(logging.NOTSET)
    assert idle > 5
