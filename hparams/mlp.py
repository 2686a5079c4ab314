"""Sets of `mlp`, the multi-layer perceptron on images."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, MAX_SIZE, base_hparams


@registry.register_hparams
def mlp_base() -> HParams:
    """Two hidden layers of 1024."""
    hparams = base_hparams()
    hparams.batch_size = 128
    hparams.layout = "batch:data;d_ff:model"
    add = hparams.add
    add("num_hidden_layers", 2, min=1, max=MAX_LAYERS, help="number of hidden layers")
    add("hidden_size", 1024, min=1, max=MAX_SIZE, help="size of each hidden layer")
    add("dropout", 0.2, min=0, below=1, help="dropout of each hidden layer's output")
    add(
        "label_smoothing",
        0.0,
        min=0,
        below=1,
        help="label smoothing: probability spread over the other classes",
    )
    return hparams
