"""Files of tensors: several files, and dtypes that are kept, widened or narrowed exactly."""

import json
import os
import shutil
import signal

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from t2tp.huggingface import moving
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.safetensors_file import DTYPES, read_header, write
from t2tp.trainer import run_yaml
from t2tp.trainer.cli import programs
from t2tp.trainer.run_dir.find_checkpoint import find
from tests import warm_processes
from tests.huggingface import our_models
from tests.huggingface.tiny_files import write_tiny_gpt2

TINY_LLAMA = dict(vocab_size=53, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
TINY_LLAMA |= dict(num_attention_heads=2, max_position_embeddings=64)
LLAMA, MISTRAL, QWEN3_MOE = map(find_type, ("llama", "mistral", "qwen3_moe"))
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def tensors_of(directory):
    """Returns the values in all files, by name, as arrays in memory."""
    files = sorted(directory.glob("*.safetensors"))
    headers = [read_header(file) for file in files]
    return {key: np.array(each.opened()) for header in headers for key, each in header.items()}


def convert(*flags):
    assert our_models.convert(*flags) == 0


@pytest.fixture
def source(tmp_path):
    write_tiny_gpt2(tmp_path / "source")
    return tmp_path / "source"


def test_a_model_in_several_slices_and_files(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(moving, "MOST_ELEMENTS", 1000)
    run, parts, back = tmp_path / "run", tmp_path / "parts", tmp_path / "back"
    convert(f"--from_hf={source}", f"--output_dir={run}")
    assert len(list(find(str(run)).path.glob("variables.data-*"))) > 2
    convert(f"--to_hf={parts}", f"--output_dir={run}", "--max_shard_size=5KB")
    index = json.loads((parts / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    for file in files:
        held = read_header(parts / file)
        assert {index["weight_map"][name] for name in held} == {file}
        sizes = [each.opened().nbytes for each in held.values()]
        assert len(sizes) == 1 or sum(sizes) <= 5000
    values = tensors_of(source)
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in values.values())
    convert(f"--from_hf={parts}", f"--output_dir={tmp_path / 'again'}")
    convert(f"--to_hf={back}", f"--output_dir={tmp_path / 'again'}")
    assert (back / WEIGHTS).is_file() and not (back / INDEX).exists()
    for directory in (parts, back):
        of_directory = tensors_of(directory)
        assert {key: each.tobytes() for key, each in of_directory.items()} == {
            key: each.tobytes() for key, each in values.items()
        }
    (parts / files[1]).unlink()
    flags = [f"--from_hf={parts}", f"--output_dir={tmp_path / 'third'}"]
    assert our_models.convert(*flags) == 2
    assert f"{files[1]} is missing, which {INDEX} names" in capsys.readouterr().err


def test_a_run_of_before_a_hyperparameter_was_declared_is_written(source, tmp_path):
    run = tmp_path / "run"
    convert(f"--from_hf={source}", f"--output_dir={run}")
    settings = run_yaml.read(run / "run.yaml")
    for name in ("lora_rank", "qkv_bias"):
        settings.hparams.pop(name, None)
    run_yaml.write(run / "run.yaml", settings)
    convert(f"--to_hf={tmp_path / 'back'}", f"--output_dir={run}")
    assert tensors_of(tmp_path / "back").keys() == tensors_of(source).keys()


def with_hparams(run, **values):
    settings = run_yaml.read(run / "run.yaml")
    settings.hparams.update(values)
    run_yaml.write(run / "run.yaml", settings)


def test_of_a_config_only_what_the_run_changed_is_written(source, tmp_path):
    """Keeps other entries, such as another name of the same activation function."""
    config = json.loads((source / "config.json").read_text()) | {"activation_function": "gelu_fast"}
    (source / "config.json").write_text(json.dumps(config))
    run, back = tmp_path / "run", tmp_path / "back"
    convert(f"--from_hf={source}", f"--output_dir={run}")
    with_hparams(run, attention_dropout=0.25)
    convert(f"--to_hf={back}", f"--output_dir={run}")
    written = json.loads((back / "config.json").read_text())
    assert written == {**config, "attn_pdrop": 0.25, "dtype": "float32"}


def test_a_changed_rope_replaces_what_a_config_says_in_a_newer_entry():
    rope = {"rope_type": "default", "rope_theta": 300.0}
    config = {**TINY_LLAMA, "hidden_act": "swish", "rope_parameters": rope}
    hparams = LLAMA.hparams(config)
    hparams.rotary_base = 999.0
    changed = LLAMA.changed(config, hparams)
    assert changed["rope_theta"] == 999.0 and "rope_parameters" not in changed
    assert LLAMA.hparams(changed) == hparams


@pytest.mark.parametrize("of_all", [False, True])
def test_biases_of_all_matrices_are_those_of_attention_and_network(of_all):
    hparams = LLAMA.hparams(TINY_LLAMA)
    hparams.use_bias, hparams.attention_bias, hparams.mlp_bias = of_all, not of_all, not of_all
    found = LLAMA.config(hparams)
    assert found["attention_bias"] and found["mlp_bias"]
    names = [entry.ours for entry in LLAMA.tensors(hparams) if entry.theirs.endswith("bias")]
    assert len(names) == 7
    with pytest.raises(ConversionError, match="bias"):
        MISTRAL.config(hparams)


def test_a_scale_of_gates_that_a_type_lacks_is_refused():
    config = {**TINY_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    hparams = QWEN3_MOE.hparams(config)
    assert QWEN3_MOE.config(hparams)["num_local_experts"] == 4
    hparams.moe_gate_scale = 2.5
    with pytest.raises(ConversionError, match="moe_gate_scale=1.0, and the run has 2.5"):
        QWEN3_MOE.config(hparams)


@pytest.mark.parametrize("size", ["5 apples", "0GB", "GB"])
def test_sizes_of_files_that_are_none(size, source, tmp_path, capsys):
    convert(f"--from_hf={source}", f"--output_dir={tmp_path / 'run'}")
    flags = [f"--to_hf={tmp_path / 'to'}", f"--output_dir={tmp_path / 'run'}"]
    assert our_models.convert(*flags, f"--max_shard_size={size}") == 2
    assert "is no size of a file" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_values_in_16_bits_are_kept_or_widened_exactly(dtype, source, tmp_path):
    values = {key: each.astype(DTYPES[dtype]) for key, each in tensors_of(source).items()}
    write(source / WEIGHTS, values)
    kept, wide = tmp_path / "kept", tmp_path / "wide"
    convert(f"--from_hf={source}", f"--output_dir={kept}")
    convert(f"--from_hf={source}", f"--output_dir={wide}", "--dtype=float32")
    name = tf.as_dtype(DTYPES[dtype].type).name
    assert {each.name for each in find(str(kept)).dtypes().values()} == {name}
    assert {each.name for each in find(str(wide)).dtypes().values()} == {"float32"}
    # Converting back gives the same bits, or the values in the requested dtype.
    for number, (run, to, wanted) in enumerate(
        [(kept, "", dtype), (kept, "float32", "F32"), (wide, "", "F32"), (wide, name, dtype)]
    ):
        back = tmp_path / f"back{number}"
        convert(f"--to_hf={back}", f"--output_dir={run}", *([f"--dtype={to}"] if to else []))
        found = tensors_of(back)
        for key, value in values.items():
            assert found[key].dtype == DTYPES[wanted]
            assert found[key].tobytes() == value.astype(DTYPES[wanted]).tobytes(), key
        config = json.loads((back / "config.json").read_text())
        assert config["dtype"] == ("float32" if wanted == "F32" else name)
        shutil.rmtree(back)


def test_narrowing_rounds_to_the_nearest_even(source, tmp_path):
    values = tensors_of(source)
    convert(f"--from_hf={source}", f"--output_dir={tmp_path / 'run'}", "--dtype=bfloat16")
    convert(f"--to_hf={tmp_path / 'back'}", f"--output_dir={tmp_path / 'run'}")
    for key, value in tensors_of(tmp_path / "back").items():
        assert value.tobytes() == values[key].astype(ml_dtypes.bfloat16).tobytes(), key


def convert_until_killed() -> None:
    """Runs `t2tp_convert` until its second read, before which the process is killed."""
    overlap, first = moving._overlap, iter([True])

    def killed(*arguments):
        if not next(first, False):
            os.kill(os.getpid(), signal.SIGKILL)
        return overlap(*arguments)

    moving._overlap = killed
    programs.t2tp_convert()


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_run_and_the_next_one_cleans_up(source, tmp_path):
    run, target = tmp_path / "at/run", f"{__name__}:convert_until_killed"
    flags = [f"--from_hf={source}", f"--output_dir={run}"]
    with warm_processes.WarmProcess(target, flags, {}, tmp_path / "output") as process:
        assert process.wait() == -signal.SIGKILL
    assert not run.exists() and any(run.parent.iterdir())
    convert(*flags)
    assert [path.name for path in run.parent.iterdir()] == ["run"]
