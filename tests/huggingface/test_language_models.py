"""Converted language models are those of `transformers`: logits, texts, gradients, and files."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest

from t2tp.huggingface.model_directory import ModelDirectory
from t2tp.huggingface.model_types.llama import LLAMA
from t2tp.huggingface.safetensors_file import read_header
from t2tp.huggingface.tensor_map import variables
from t2tp.ops.rotary import RotaryScaling, turns_of
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import LANGUAGE_MODELS

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

EACH_MODEL = pytest.mark.parametrize("name", LANGUAGE_MODELS)


def check_logits(name, mesh):
    import torch

    targets = their_models.targets()
    inputs = np.concatenate(
        [np.full([len(targets), 1], their_models.begin_token(name)), targets[:, :-1]], axis=1
    )
    model = their_models.loaded(name)
    with torch.no_grad():
        wanted = model(torch.tensor(inputs)).logits.numpy()
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(our_models.logits(name, mesh), wanted, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", our_models.MESHES)
@EACH_MODEL
def test_the_logits_are_theirs_on_any_mesh(name, mesh):
    check_logits(name, mesh)


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


@pytest.mark.slow
def test_biases_may_be_in_the_network_alone(tmp_path):
    check_logits("llama_mlp_bias", "one device")
    check_there_and_back("llama_mlp_bias", tmp_path)


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


@EACH_MODEL
def test_fifty_tokens_of_greedy_generation_are_theirs(name):
    import torch

    prompts = [[5, 9, 30], [0, 1], [52, 3, 4, 5, 6], [8]]
    wanted = []
    for prompt in prompts:
        given = torch.tensor([[their_models.begin_token(name), *prompt]])
        out = their_models.loaded(name).generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=50,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            # With this window their cache keeps all keys: it cuts off `keys[-window + 1 :]`.
            use_cache=name != "mistral_window_of_one",
        )
        wanted.append(out[0, given.shape[1] :].tolist())
    assert our_models.generated(name, "2x2", prompts, 50) == wanted
    assert len({tuple(each) for each in wanted}) > 1


def their_gradients(model):
    """The gradients by the names in files, where Mixtral's experts are apart."""
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        *_, last = name.split(".")
        before = name.removesuffix(f"mlp.experts.{last}") + "block_sparse_moe.experts"
        if last == "gate_up_proj":
            for expert, each in enumerate(gradient):
                for part, half in zip(("w1", "w3"), np.split(each, 2), strict=True):
                    gradients[f"{before}.{expert}.{part}.weight"] = half
        elif last == "down_proj":
            gradients |= {f"{before}.{n}.w2.weight": each for n, each in enumerate(gradient)}
        else:
            gradients[name.replace("mlp.gate.", "block_sparse_moe.gate.")] = gradient
    return gradients


@pytest.mark.parametrize("name", ["gpt2", "llama_grouped_scaled", "mixtral"])
def test_the_gradients_are_theirs(name):
    import torch

    targets = their_models.targets()
    first = np.full([len(targets), 1], their_models.begin_token(name))
    model = their_models.loaded(name)
    inputs = torch.tensor(np.concatenate([first, targets[:, :-1]], axis=1))
    model.zero_grad()
    logits = model(inputs).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(targets).long().flatten()
    )
    loss.backward()
    theirs = their_gradients(model)
    ours = dict(our_models.loss_and_gradients(name, "2x2"))
    assert ours.pop("loss") == pytest.approx(loss.item(), rel=1e-5)
    source = ModelDirectory.from_path(their_models.directory(name))
    kind, hparams = source.model_type, source.hparams()
    table = variables(kind.tensors(hparams), kind.sizes(hparams))
    assert {each.name for each in table} == {key for key in ours if "summaries" not in key}
    for variable in table:
        for piece in variable.pieces:
            wanted = piece.view(theirs[piece.theirs])
            begin = piece.expert or 0
            got = ours[variable.name][begin : begin + len(wanted)]
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4, err_msg=variable.name)


def check_there_and_back(name, tmp_path):
    source, back = their_models.directory(name), tmp_path / "back"
    assert our_models.convert(f"--to_hf={back}", f"--output_dir={our_models.run_of(name)}") == 0
    ours, theirs = (read_header(path / "model.safetensors") for path in (back, source))
    assert set(ours) == set(theirs)
    for key, tensor in theirs.items():
        assert (ours[key].dtype, ours[key].shape) == (tensor.dtype, tensor.shape)
        assert ours[key].opened().tobytes() == tensor.opened().tobytes(), key
    configs = [json.loads((path / "config.json").read_text()) for path in (back, source)]
    assert configs[0] == configs[1]


@EACH_MODEL
def test_there_and_back_all_tensors_are_the_same_bits(name, tmp_path):
    check_there_and_back(name, tmp_path)


@EACH_MODEL
def test_transformers_loads_what_is_written_without_missing_or_unexpected_keys(name, tmp_path):
    import transformers

    out = tmp_path / "back"
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={our_models.run_of(name)}") == 0
    model_class = getattr(transformers, LANGUAGE_MODELS[name][0])
    _, info = model_class.from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@EACH_MODEL
def test_a_run_that_was_made_of_no_directory_says_what_it_is_in_its_config(name, tmp_path):
    import torch
    import transformers

    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(our_models.run_of(name), run)
    shutil.rmtree(run / "huggingface")
    kind = their_models.loaded(name).config.model_type
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}", f"--model_type={kind}") == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    tokens = torch.tensor(their_models.targets()).long()
    with torch.no_grad():
        logits, wanted = model(tokens).logits, their_models.loaded(name)(tokens).logits
    assert torch.equal(logits, wanted)
