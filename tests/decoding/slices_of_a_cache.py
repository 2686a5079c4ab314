"""A program for several processes, each of which holds a part of the decoding cache."""

import sys

import numpy as np

import t2tp
from t2tp.decoding import DecodeOptions, decode
from t2tp.decoding.prompt_batch import row_features
from t2tp.models.transformer_lm import TransformerLm
from tests.models.small_lm import make_hparams
from tests.peak_memory import peak_bytes

ROWS, LAYERS, HEADS, D_KV = 4, 2, 4, 256
PLACE_BYTES = 2 * 4 * ROWS * LAYERS * HEADS * D_KV  # keys and values of one position in all rows
MESH = {"mesh_shape": "data:2;model:2", "layout": "batch:data;heads:model"}


def make_model() -> TransformerLm:
    """Returns a model with few parameters and large heads."""
    sizes = {"d_ff": 16, "num_heads": HEADS, "d_kv": D_KV, "num_hidden_layers": LAYERS}
    return TransformerLm(make_hparams(position="none", **sizes), {"targets": 30})


def decoding_program(length: int, options: str = "beam_size=1,eos_id=-1") -> t2tp.Program:
    """Returns a decoding program for rows of at most `length` tokens."""
    model, chosen = make_model(), DecodeOptions.parse(options)
    return t2tp.Program(
        lambda mesh, features: decode(model, mesh, features, chosen),
        row_features(ROWS, length, prefix_length=1),
        **MESH,
    )


def peak(length: int) -> int:
    """Decodes; returns the most memory that this process has used so far, in bytes."""
    features = row_features(ROWS, length, prefix_length=1)
    fed = {name: np.zeros(f.shape.to_integer_list) for name, f in features.items()}
    fed["limits"] += 4  # decodes four tokens, although the rows have room for `length`
    assert decoding_program(length)(fed)["steps"] == 4
    return peak_bytes()


def main() -> None:
    """Prints how much more memory decoding needs with a long cache than with a short one."""
    short, long = map(int, sys.argv[1:])
    before = peak(short)
    print(peak(long) - before)
