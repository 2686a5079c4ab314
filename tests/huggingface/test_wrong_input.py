"""What cannot be converted gets one sentence and exit code 2, and nothing is written."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from t2tp.huggingface.safetensors_file import read_header, write
from tests.files import STRANGE
from tests.huggingface import our_models, their_models

pytest.importorskip("transformers", reason="pip install -e '.[hf-tests]'")


def copied(name, directory):
    return Path(shutil.copytree(their_models.directory(name), directory / "source"))


@pytest.fixture
def source(tmp_path):
    return copied("gpt2", tmp_path)


def with_config(source, **values):
    file = source / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def with_logits(source, scale):
    """Adds a tensor of logits, a multiple of the embedding, to files that say both are tied."""
    file = source / "model.safetensors"
    tensors = {key: np.array(each.opened()) for key, each in read_header(file).items()}
    tensors["lm_head.weight"] = np.float32(scale) * tensors["transformer.wte.weight"]
    write(file, tensors)


def strange(path, kind):
    path.unlink(missing_ok=True)
    STRANGE[kind](path)


def without_pieces(source, kind=""):
    if kind:
        strange(source / "model-00001-of-00002.safetensors", kind)
    names = {"transformer.wte.weight": "model-00001-of-00002.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def with_a_larger_tokenizer(source):
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 53, "content": "<end>"}]}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))


# Damage to a directory, or changed entries of its config -> the message.
WRONG = [
    (lambda at: os.truncate(at / "model.safetensors", 5000), "tensors is damaged or incomplete"),
    (lambda at: os.truncate(at / "model.safetensors", 20), "tensors is damaged or incomplete"),
    (without_pieces, "model-00001-of-00002.safetensors is missing"),
    (lambda at: without_pieces(at, "a link to itself"), "00001-of-00002.safetensors is missing"),
    (lambda at: strange(at / "config.json", "a link outside"), "config.json is a link to /etc/"),
    (lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"), "bin, a pickle"),
    ({"model_type": "mamba"}, "'mamba', only gpt2, llama, .*, gemma3_text, gpt_oss, bert, vit$"),
    ({"model_type": "qwen4"}, "'qwen4', only ((?!did you mean).)*$"),
    ({"architectures": ["GPT2ForSequenceClassification"]}, "Classification: .* GPT2LMHeadModel"),
    ({"n_inner": 32}, "the two are not of one model"),
    ({"activation_function": "gelu_neww"}, "did you mean .*gelu_new"),
    ({"n_layer": 3}, "has no tensor transformer.h.2"),
    ({"n_layer": 1}, "has a tensor transformer.h.1"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (lambda at: (at / "config.json").unlink(), "has no config.json"),
    (with_a_larger_tokenizer, "has tokens up to 53, and the model has 53"),
    (lambda at: with_logits(at, 2), "lm_head.weight that differs from the embedding"),
    (lambda at: (at / "config.json").write_text("{"), "config.json is not JSON"),
]


_WINDOW = {"layer_types": None, "use_sliding_window": True, "sliding_window": 3}
OTHER_TYPES = [
    ("t5", {"relative_attention_max_distance": 4}, "must have more than half of .*buckets=8"),
    ("t5", {"relative_attention_num_buckets": 2}, "relative_buckets"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
    ("qwen2", {"layer_types": ["full_attention"]}, "one for each of 2 layers"),
    ("qwen2", {**_WINDOW, "max_window_layers": None}, "0 or null .* type qwen2"),
    ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "default, linear"),
    ("llama_grouped_scaled", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
]


ALL = [*(("gpt2", *each) for each in WRONG), *OTHER_TYPES]


@pytest.mark.parametrize(("name", "damage", "wanted"), ALL, ids=[each for *_, each in ALL])
def test_a_sentence_says_what_is_wrong(name, damage, wanted, tmp_path, capsys):
    source = copied(name, tmp_path)
    with_config(source, **damage) if isinstance(damage, dict) else damage(source)
    capsys.readouterr()  # `transformers` prints its progress
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={tmp_path / 'run'}") == 2
    said = capsys.readouterr().err.strip()
    assert re.search(wanted, said) and len(said.splitlines()) == 1, said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_logits_that_are_a_copy_of_the_embedding_are_accepted(source, tmp_path):
    with_logits(source, 1)
    run, back = tmp_path / "run", tmp_path / "back"
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={run}") == 0
    assert our_models.convert(f"--to_hf={back}", f"--output_dir={run}") == 0
    assert "lm_head.weight" not in read_header(back / "model.safetensors")


def test_a_run_is_not_written_over(source, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    assert our_models.convert(f"--from_hf={source}", f"--output_dir={tmp_path / 'run'}") == 2
    assert "exists: name a new directory" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]


def test_one_direction_at_a_time(tmp_path, capsys):
    assert our_models.convert(f"--output_dir={tmp_path}") == 2
    assert "give either --from_hf=DIR or --to_hf=DIR" in capsys.readouterr().err


def test_a_type_that_the_run_is_not_is_refused(tmp_path, capsys):
    run = our_models.run_of("gpt2_untied_relu")
    flags = [f"--to_hf={tmp_path / 'back'}", f"--output_dir={run}", "--model_type=llama"]
    assert our_models.convert(*flags) == 2
    assert "architecture of models of type gpt2, not of type llama" in capsys.readouterr().err
