"""A tiny GPT-2 as files, without `transformers`: for tests of commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

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


def write_tiny_gpt2(directory: Path) -> None:
    """Writes `config.json` and weights."""
    kind = find_type("gpt2")
    hparams = kind.hparams(CONFIG)
    shapes = {
        piece.theirs: ("F32", piece.shape)
        for each in variables(kind.tensors(hparams), kind.sizes(hparams), {})
        for piece in each.pieces
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    draw = np.random.default_rng(0)
    for tensor in create(directory / "model.safetensors", shapes).values():
        tensor.opened("r+")[...] = draw.normal(0, 0.1, tensor.shape)
