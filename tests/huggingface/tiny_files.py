"""Writes the files of tiny models with a tokenizer, without `transformers`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.safetensors_file import write
from t2tp.huggingface.tensor_map import variables

CONFIG = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=300, n_positions=32)
CONFIG |= dict(n_embd=16, n_layer=1, n_head=2, bos_token_id=1)
LLAMA_CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=300)
LLAMA_CONFIG |= dict(max_position_embeddings=32, hidden_size=16, intermediate_size=32)
LLAMA_CONFIG |= dict(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
LLAMA_CONFIG |= dict(hidden_act="silu", rms_norm_eps=1e-6, bos_token_id=1)

END = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def write_tokenizer(directory: Path) -> None:
    """Writes a byte-level BPE tokenizer, as GPT-2 has, without a chat template."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[text]'")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9, trainer)
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))


def write_tiny_chat_gpt2(directory: Path) -> None:
    """Writes the model of `write_tiny_gpt2`, with a chat template in the tokenizer's config."""
    write_tiny_gpt2(directory)
    config = {"eos_token": END, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_tiny_gpt2(directory: Path, **changes: int) -> None:
    """Writes a GPT-2's config, weights and tokenizer; `changes` are entries of the config."""
    _write({**CONFIG, **changes}, directory)


def write_tiny_llama(directory: Path, **changes: Any) -> None:
    """Writes a Llama's config, weights and tokenizer; `changes` are entries of the config."""
    _write({**LLAMA_CONFIG, **changes}, directory)


def _write(config: dict[str, Any], directory: Path) -> None:
    kind = find_type(config["model_type"])
    hparams = kind.hparams(config)
    of_model = variables(kind.tensors(hparams), kind.sizes(hparams))
    shapes = {piece.theirs: piece.shape for each in of_model for piece in each.pieces}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory)
    draw = np.random.default_rng(0)
    values = {key: draw.normal(0, 0.1, shape) for key, shape in shapes.items()}
    write(directory / "model.safetensors", {key: np.float32(each) for key, each in values.items()})
