"""Adapters of converted models, written for PEFT or merged, give the trained model's logits."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import registry
from t2tp.building.adapters import UP
from t2tp.checkpoint.variables import load_base
from t2tp.choices import ADAPTED
from t2tp.huggingface.safetensors_file import read_header
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from tests.huggingface import our_models, their_models
from tests.huggingface.their_models import LENGTH, VOCAB

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")

RANK, ALPHA = 3, 6.0
# model -> the weights with adapters; GPT-2's queries, keys and values share one matrix
CASES = {
    "gpt2": ["query", "value", "output"],
    "llama_grouped_scaled": list(ADAPTED),
    "mixtral": ["query", "feed_forward"],
}


@functools.cache
def tuned(name: str, directory: Path, **changes) -> tuple:
    """Saves a run with random adapters; returns its directory and its logits."""
    hparams = run_files.read(str(our_models.run_of(name))).hparams.copy()
    adapters = {"lora_rank": RANK, "lora_alpha": ALPHA, "lora_targets": CASES[name]}
    for key, value in {**adapters, **changes}.items():
        hparams.set(key, value)
    flags = run_files.read(str(our_models.run_of(name))).flags
    model = registry.model(flags["model"])(hparams, {"targets": VOCAB})
    fed = our_models.features()
    mesh_shape, layout = our_models.MESHES["2x2"]
    program = t2tp.Program(
        lambda mesh, given: {"logits": model.logits(mesh, given)},
        {key: t2tp.Feature(f"batch:4;length:{LENGTH}", tf.int32) for key in fed},
        layout=t2tp.Layout(mesh_shape, layout),
    )
    load_base(our_models.saved(name), program.variables)
    draw = np.random.default_rng(0)
    for variable in program.variables:
        if variable.spec.name.endswith(UP):
            whole = draw.normal(0, 0.2, variable.spec.shape.to_integer_list).astype(np.float32)
            for pnum, part in enumerate(variable.slices):
                at = zip(variable.begin(pnum), part.shape, strict=True)
                part.assign(whole[tuple(slice(begin, begin + size) for begin, size in at)])
    run = directory / "run"
    t2tp.save_checkpoint(run / "checkpoints", program, 5)
    run_files.write(str(run), hparams, flags)
    return run, program(fed)["logits"][..., :VOCAB]


def check_logits(name: str, model, logits: np.ndarray) -> None:
    """Compares the logits of a model of `transformers` with ours."""
    import torch

    inputs = torch.tensor(their_models.with_first(name, their_models.targets()[:, :-1]))
    with torch.no_grad():
        theirs = model.eval()(inputs).logits.numpy()
    np.testing.assert_allclose(theirs, logits, rtol=0, atol=2e-5)


def plain_model(name: str):
    """Returns a float32 copy of a Hugging Face model; the caller may change it."""
    return their_models.loaded_whole(name, their_models.directory(name))


def written(run: Path, out: Path, *flags: str) -> Path:
    assert our_models.convert(f"--to_hf={out}", f"--output_dir={run}", *flags) == 0
    return out


def weight_of(model, module):
    """Returns a module's weight; `transformers` stores the experts in two parameters."""
    if ".experts." not in module:
        return model.get_submodule(module).weight
    block, _, rest = module.partition(".block_sparse_moe.experts.")
    expert, part = rest.split(".")
    experts = model.get_submodule(f"{block}.mlp.experts")
    if part == "w2":
        return experts.down_proj[int(expert)]
    gate, up = experts.gate_up_proj[int(expert)].chunk(2)
    return gate if part == "w1" else up


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_adapters_written_for_peft_are_those_that_were_trained(name, tmp_path):
    """Adds the adapters to the weights as PEFT's documentation describes."""
    import torch

    run, logits = tuned(name, tmp_path)
    out = written(run, tmp_path / "peft")
    assert {path.name for path in out.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(their_models.directory(name))
    model = plain_model(name)
    tensors = {k: v.opened() for k, v in read_header(out / "adapter_model.safetensors").items()}
    modules = {key.rsplit(".", 2)[0] for key in tensors}
    for module in modules:
        down, up = (tensors[f"{module}.lora_{end}.weight"] for end in "AB")
        plain = module.removeprefix("base_model.model.")
        assert any(plain.endswith(f".{end}") for end in config["target_modules"])
        end = next((e for e in config["rank_pattern"] if plain.endswith(f".{e}")), None)
        assert len(down) == config["rank_pattern"].get(end, config["r"])
        scale = config["alpha_pattern"].get(end, config["lora_alpha"]) / len(down)
        change = scale * up @ down
        with torch.no_grad():
            weight = weight_of(model, plain)
            weight += torch.tensor(change.T if config["fan_in_fan_out"] else change)
    check_logits(name, model, logits)
    assert np.abs(logits - our_models.logits(name, "one device")).max() > 0.1


@pytest.mark.parametrize("name", CASES)
def test_peft_loads_the_adapters(name, tmp_path):
    peft = pytest.importorskip("peft", reason="pip install peft")
    run, logits = tuned(name, tmp_path)
    out = written(run, tmp_path / "peft")
    check_logits(name, peft.PeftModel.from_pretrained(plain_model(name), out), logits)


@pytest.mark.parametrize("name", CASES)
def test_a_merged_model_is_the_one_that_was_trained(name, tmp_path):
    changes = {"lora_also_trained": "final/norm_scale"} if name == "mixtral" else {}
    run, logits = tuned(name, tmp_path, **changes)
    out = written(run, tmp_path / "merged", "--merge_lora")
    check_logits(name, their_models.loaded_whole(name, out), logits)


def test_a_16_bit_base_is_merged_in_the_precision_that_is_asked_for(tmp_path, monkeypatch):
    base = f"--output_dir={tmp_path / 'base'}"
    theirs = f"--from_hf={their_models.directory('gpt2')}"
    assert our_models.convert(theirs, base, "--dtype=bfloat16") == 0
    monkeypatch.setattr(our_models, "saved", lambda name: find(str(tmp_path / "base")))
    run, logits = tuned.__wrapped__("gpt2", tmp_path)
    out = written(run, tmp_path / "merged", "--merge_lora", "--dtype=float32")
    check_logits("gpt2", their_models.loaded_whole("gpt2", out), logits)


def test_what_peft_has_nothing_for_is_refused(tmp_path, capfd):
    run, _ = tuned("gpt2", tmp_path, lora_also_trained="positions")
    assert our_models.convert(f"--to_hf={tmp_path / 'out'}", f"--output_dir={run}") == 2
    said = capfd.readouterr().err
    assert "positions was trained" in said and "--merge_lora" in said
    assert not (tmp_path / "out").exists()


def test_a_run_without_adapters_has_nothing_to_merge(tmp_path, capfd):
    run = our_models.run_of("gpt2")
    assert (
        our_models.convert(f"--to_hf={tmp_path / 'a'}", f"--output_dir={run}", "--merge_lora") == 2
    )
    assert "has no adapters" in capfd.readouterr().err
