"""A tiny GPT-2 as files, with a tokenizer, without `transformers`: for tests of commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from t2tp.huggingface.known_types import find_type
from t2tp.huggingface.safetensors_file import create
from t2tp.huggingface.tensor_map import variables

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 300,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": 1,
}


END = "<|endoftext|>"


def write_tokenizer(directory: Path) -> None:
    """Writes a tokenizer of pieces of bytes, as GPT-2 has."""
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


def write_tiny_gpt2(directory: Path) -> None:
    """Writes `config.json`, weights and a tokenizer."""
    kind = find_type("gpt2")
    hparams = kind.hparams(CONFIG)
    shapes = {
        piece.theirs: ("F32", piece.shape)
        for each in variables(kind.tensors(hparams), kind.sizes(hparams), {})
        for piece in each.pieces
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(directory)
    draw = np.random.default_rng(0)
    for tensor in create(directory / "model.safetensors", shapes).values():
        tensor.opened("r+")[...] = draw.normal(0, 0.1, tensor.shape)
