"""Converted language models are those of `transformers`: logits, texts, gradients, and files."""

import copy
import shutil

import numpy as np
import pytest

from t2tp.huggingface.model_directory import ModelDirectory
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.tensor_map import variables
from t2tp.ops.rotary import RotaryScaling, turns_of
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import KINDS

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

MESHES = ["2x2", "one device", "ZeRO 3", "stage:2", "seq:2"]
EVERY_KIND = [(kind, MESHES[number % 5], 0) for number, kind in enumerate(KINDS)]
TEN_OF_EACH = [
    pytest.param(kind, MESHES[(number + seed) % 5], seed, marks=pytest.mark.ci_only)
    for number, kind in enumerate(KINDS)
    for seed in range(1, 11)
]
PROMPTS = [[5, 9, 30], [0, 1], [52, 3, 4, 5, 6, 9, 9, 2, 11], [8]]


@pytest.mark.parametrize(("kind", "mesh", "seed"), [*EVERY_KIND, *TEN_OF_EACH])
def test_a_random_model_is_theirs_on_a_mesh(kind, mesh, seed, tmp_path):
    """Logits, loss, gradients, greedy texts; there and back, with their config and without.

    Both are computed in float64.
    """
    # Stages have the same layers, two each.
    name = their_models.random_model(kind, seed, 2 if mesh == "stage:2" else 1)
    model = copy.deepcopy(their_models.loaded(name))
    exact = their_models.in_float64(model)
    wanted = exact(with_first(name, their_models.targets()[:, :-1]))
    logits = wanted.detach().numpy()
    assert np.abs(logits).max() > 0.5
    ours = our_models.descent(name, mesh)
    np.testing.assert_allclose(ours.pop("logits"), logits, rtol=0, atol=1e-6)
    check_descent(name, ours, wanted, model)
    length = 200 if seed else 30
    texts = our_models.generated(name, mesh, PROMPTS, length)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        row = with_first(name, np.array([[*prompt, *text[:-1]]]))
        (best,) = exact(row)[:, len(prompt) :].argmax(-1).numpy()
        assert best.tolist() == text
        assert len(text) == length
    our_models.check_there_and_back(name, tmp_path / "back")
    check_without_their_config(name, kind, logits, tmp_path)


def with_first(name, tokens):
    first = np.full([len(tokens), 1], their_models.begin_token(name))
    return np.concatenate([first, tokens], axis=1)


def check_descent(name, ours, logits, model):
    """Loss and gradients of a step of training."""
    import torch

    targets = torch.tensor(their_models.targets()).long()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    theirs = their_gradients(model)
    assert ours["loss"] == pytest.approx(loss.item(), abs=1e-6)
    source = ModelDirectory.from_path(their_models.directory(name))
    model_type, hparams = source.model_type, source.hparams()
    for variable in variables(model_type.tensors(hparams), model_type.sizes(hparams)):
        for piece in variable.pieces:
            wanted = piece.view(theirs[piece.theirs])
            begin = piece.expert or 0
            got = ours[variable.name][begin : begin + len(wanted)]
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5, err_msg=variable.name)


def check_without_their_config(name, kind, logits, tmp_path):
    """A run that was not made of a directory is written as the same model."""
    import transformers

    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(our_models.run_of(name), run)
    shutil.rmtree(run / "huggingface")
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}", f"--model_type={kind}") == 0
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    got = their_models.in_float64(model.eval())(with_first(name, their_models.targets()[:, :-1]))
    np.testing.assert_allclose(got.detach().numpy(), logits, rtol=0, atol=1e-6)


def their_gradients(model):
    """The gradients by the names in files, where experts are apart."""
    is_mixtral = model.config.model_type == "mixtral"
    block = "block_sparse_moe" if is_mixtral else "mlp"
    parts = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        layer, found, last = name.partition(".mlp.experts.")
        before = f"{layer}.{block}.experts"
        if not found or model.config.model_type == "gpt_oss":
            gradients[name.replace("mlp.gate.", f"{block}.gate.")] = gradient
            continue
        for expert, each in enumerate(gradient):
            halves = np.split(each, 2) if last == "gate_up_proj" else [each]
            names = parts[:2] if last == "gate_up_proj" else parts[2:]
            for part, half in zip(names, halves, strict=True):
                gradients[f"{before}.{expert}.{part}.weight"] = half
    return gradients


LLAMA_3_1 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0)
LLAMA_3_1 |= dict(high_freq_factor=4.0, original_max_position_embeddings=8192)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("rope", [dict(rope_type="default", rope_theta=1e4), LLAMA_3_1])
def test_positions_turn_by_their_angles_to_the_last_bit(rope, size):
    """At position 8000, an error in the last bit of an angle per position is one of 0.0005."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(head_dim=size, rope_parameters=rope)
    wanted = LlamaRotaryEmbedding(config).inv_freq.numpy()
    hparams = LLAMA.read({**LLAMA.defaults, **config.to_dict()})
    scaling = None
    if rope is LLAMA_3_1:
        scaling = RotaryScaling(
            hparams["rotary_scaling_factor"],
            hparams["rotary_low_freq_factor"],
            hparams["rotary_high_freq_factor"],
            hparams["rotary_original_length"],
        )
    found = turns_of(size, hparams["rotary_base"], scaling)
    # Powers differ in their last bit from processor to processor, seldom.
    assert np.mean(found != wanted) < 0.1
