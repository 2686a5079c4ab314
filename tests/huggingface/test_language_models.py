"""Converted language models match `transformers`: logits, texts, gradients, and files."""

import copy
import shutil

import numpy as np
import pytest

from t2tp.huggingface.rotary import ROTARY
from t2tp.ops.rotary import RotaryScaling, turns_of
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import KINDS, with_first

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

MESHES = ["2x2", "one device", "ZeRO 3", "stage:2", "seq:2"]
# Ten random configs of each type on each mesh. All test runs include the first case of a type.
CASES = [
    (kind, MESHES[(number + case) % 5], (number + case // 5) % 10)
    for number, kind in enumerate(KINDS)
    for case in range(50)
]
PROMPTS = [[5, 9, 30], [0, 1], [52, 3, 4, 5, 6, 9, 9, 2, 11], [8]]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mesh", "seed"), CASES)
def test_a_random_model_is_theirs_on_a_mesh(kind, mesh, seed):
    """Compares logits, loss, gradients and 200 greedy tokens, in float64."""
    # Pipeline stages must have identical layers.
    name = their_models.random_model(kind, seed, 2 if mesh == "stage:2" else 1)
    model = copy.deepcopy(their_models.loaded(name))
    theirs = their_models.in_float64(model)
    wanted = theirs(with_first(name, their_models.targets()[:, :-1]))
    assert np.abs(wanted.detach().numpy()).max() > 0.5
    ours = our_models.descent(name, mesh)
    np.testing.assert_allclose(ours.pop("logits"), wanted.detach().numpy(), rtol=0, atol=1e-6)
    check_descent(name, ours, wanted, model)
    check_texts(name, our_models.generated(name, mesh, PROMPTS, 200), theirs)


def check_texts(name, texts, theirs):
    """Checks that each token is the most probable one, for `transformers`, after its prefix."""
    rows = [[*prompt, *text.tokens] for prompt, text in zip(PROMPTS, texts, strict=True)]
    padded = np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    logits = theirs(with_first(name, padded[:, :-1])).detach().log_softmax(-1).numpy()
    for row, prompt, text in zip(logits, PROMPTS, texts, strict=True):
        of_text = row[len(prompt) :][:200]
        assert of_text.argmax(-1).tolist() == text.tokens
        assert text.log_prob == pytest.approx(of_text.max(-1).sum(), abs=1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_random_model_are_theirs(kind, seed, tmp_path):
    """Converts there and back, and also from a run without the original directory's config."""
    name, run, out = their_models.random_model(kind, seed), tmp_path / "run", tmp_path / "out"
    our_models.check_there_and_back(name, tmp_path / "back")
    shutil.copytree(our_models.run_of(name), run)
    shutil.rmtree(run / "huggingface")
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}", f"--model_type={kind}") == 0
    model = their_models.loaded_whole(name, out)
    rows = with_first(name, their_models.targets()[:, :-1])
    got, wanted = (
        their_models.in_float64(copy.deepcopy(each))(rows).detach().numpy()
        for each in (model, their_models.loaded(name))
    )
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


def check_descent(name, ours, logits, model):
    """Compares the loss and gradients of a training step."""
    import torch

    targets = torch.tensor(their_models.targets()).long()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    theirs = their_gradients(model)
    assert ours["loss"] == pytest.approx(loss.item(), abs=1e-6)
    our_models.check_gradients(name, ours, theirs)


def their_gradients(model):
    """Returns gradients by the names in files, which have one tensor per expert."""
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

# The bounds between which YaRN's share is linear cross.
CROSSED = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=2)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("rope", [dict(rope_type="default", rope_theta=1e4), LLAMA_3_1, CROSSED])
def test_positions_turn_by_their_angles_to_the_last_bit(rope, size):
    """An error in an angle's last bit grows to 0.0005 at position 8000."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(head_dim=size, rope_parameters=rope)
    wanted = LlamaRotaryEmbedding(config).inv_freq.numpy()
    hparams = ROTARY.read(config.to_dict())
    scaling = None
    if rope["rope_type"] != "default":
        scaling = RotaryScaling(
            hparams["rotary_scaling_factor"],
            hparams["rotary_low_freq_factor"],
            hparams["rotary_high_freq_factor"],
            hparams["rotary_original_length"],
            hparams["rotary_scaling"],
        )
    found = turns_of(size, hparams["rotary_base"], scaling)
    # Powers rarely differ in their last bit between processors.
    assert np.mean(found != wanted) < 0.1


_ROUTED = [("mixtral", 2), ("gpt_oss", 1), ("gpt_oss", 4)]
_ROUTED += [("qwen3_moe", k) for k in (2, 4, 8)]


@pytest.mark.parametrize(("kind", "k"), _ROUTED)
def test_the_training_loss_includes_the_routers_loss_of_transformers(kind, k):
    import torch

    name = their_models.experts(kind, k)
    tokens = np.repeat(their_models.targets()[:1], 4, axis=0)
    fed = our_models.features_of("targets", tokens)
    ours = our_models.descent(name, "one device", fed)["loss"]
    inputs = torch.tensor(their_models.with_first(name, tokens[:, :-1]))
    out = their_models.loaded(name).float()(inputs, output_router_logits=True)
    labels = torch.tensor(tokens).long()
    nll = torch.nn.functional.cross_entropy(out.logits.transpose(1, 2), labels)
    assert ours == pytest.approx(float(nll + 0.5 * out.aux_loss), abs=1e-4)
