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
PROMPTS = [[5, 9, 30], [0, 1], [52, 3, 4, 5, 6], [8]]


@pytest.mark.parametrize(("kind", "mesh", "seed"), [*EVERY_KIND, *TEN_OF_EACH])
def test_a_random_model_is_theirs_on_a_mesh(kind, mesh, seed, tmp_path):
    """Logits, loss, gradients, greedy texts; there and back, with their config and without."""
    name = their_models.random_model(kind, seed)
    exact, bound = their_logits(name)
    np.testing.assert_allclose(our_models.logits(name, mesh), exact, rtol=0, atol=bound)
    check_gradients(name, mesh, bound)
    for prompt, text in zip(PROMPTS, our_models.generated(name, mesh, PROMPTS, 50), strict=True):
        check_greedy(name, prompt, text)
    our_models.check_there_and_back(name, tmp_path / "back")
    check_without_their_config(name, kind, exact, bound, tmp_path)


def their_logits(name):
    """Theirs in float64, and a bound of rounding errors by the difference of float32."""
    import torch

    inputs = torch.tensor(with_first(name, their_models.targets()[:, :-1]))
    model = their_models.loaded(name)
    with torch.no_grad():
        logits = model(inputs).logits.numpy()
        exact = copy.deepcopy(model).double()(inputs).logits.numpy()
    assert np.abs(exact).max() > 0.5
    return exact, 3 * np.abs(logits - exact).max() + 1e-6 * np.abs(exact).max()


def with_first(name, tokens):
    first = np.full([len(tokens), 1], their_models.begin_token(name))
    return np.concatenate([first, tokens], axis=1)


def check_gradients(name, mesh, bound):
    model = their_models.loaded(name)
    loss, theirs = loss_and_gradients(name, copy.deepcopy(model).double())
    _, rounded = loss_and_gradients(name, copy.deepcopy(model))
    ours = our_models.descent(name, mesh)
    assert ours["loss"] == pytest.approx(loss, abs=bound)
    source = ModelDirectory.from_path(their_models.directory(name))
    model_type, hparams = source.model_type, source.hparams()
    for variable in variables(model_type.tensors(hparams), model_type.sizes(hparams)):
        for piece in variable.pieces:
            wanted = piece.view(theirs[piece.theirs])
            begin = piece.expert or 0
            got = ours[variable.name][begin : begin + len(wanted)]
            rounding = np.abs(piece.view(rounded[piece.theirs]) - wanted).max()
            atol = max(3 * rounding, 1e-5 * max(1, np.abs(wanted).max()))
            np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=variable.name)


def loss_and_gradients(name, model):
    """Their loss of `targets`, and its gradients."""
    import torch

    targets = their_models.targets()
    logits = model(torch.tensor(with_first(name, targets[:, :-1]))).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).long().flatten()
    )
    loss.backward()
    return loss.item(), their_gradients(model)


def check_greedy(name, prompt, text):
    """Each token of a text is their most probable one, or as probable up to rounding."""
    import torch

    row = with_first(name, np.array([[*prompt, *text[:-1]]]))
    with torch.no_grad():
        (logits,) = their_models.loaded(name)(torch.tensor(row)).logits[:, len(prompt) :].numpy()
    assert len(text) == len(logits) == 50
    chosen = logits[np.arange(len(text)), text]
    np.testing.assert_allclose(chosen, logits.max(-1), rtol=0, atol=2e-5)


def check_without_their_config(name, kind, exact, bound, tmp_path):
    """A run that was not made of a directory is written as the same model."""
    import torch
    import transformers

    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(our_models.run_of(name), run)
    shutil.rmtree(run / "huggingface")
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}", f"--model_type={kind}") == 0
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        inputs = torch.tensor(with_first(name, their_models.targets()[:, :-1]))
        logits = model.eval()(inputs).logits.numpy()
    np.testing.assert_allclose(logits, exact, rtol=0, atol=bound)


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
        if not found:
            gradients[name.replace("mlp.gate.", f"{block}.gate.")] = gradient
            continue
        for expert, each in enumerate(gradient):
            halves = np.split(each, 2) if last == "gate_up_proj" else [each]
            names = parts[:2] if last == "gate_up_proj" else parts[2:]
            for part, half in zip(names, halves, strict=True):
                gradients[f"{before}.{expert}.{part}.weight"] = half
    return gradients


@pytest.mark.slow
def test_where_float32_differs_by_more_than_a_bound_theirs_do_from_the_exact_logits_too():
    """Of larger weights; the bound of the other tests is one of small models."""
    import torch

    model = their_models.loaded("qwen2_wide")
    inputs = torch.tensor(np.pad(their_models.targets()[:, :-1], [(0, 0), (1, 0)]))
    with torch.no_grad():
        theirs = model(inputs).logits.numpy()
        exact = copy.deepcopy(model).double()(inputs).logits.numpy()
    ours = our_models.logits("qwen2_wide", "one device")
    rounding = np.abs(theirs - exact).max()
    assert rounding > 5e-6
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2 * rounding)


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
