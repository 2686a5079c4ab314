"""Sets of `mlp`, the multi-layer perceptron on images."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, RATE, SIZE, base_hparams, bounded


@registry.register_hparams
def mlp_base() -> HParams:
    """Two hidden layers of 1024."""
    hparams = base_hparams()
    hparams.batch_size = 128
    hparams.layout = "batch:data;d_ff:model"
    add = hparams.add
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    add("num_hidden_layers", 2, "number of hidden layers", min=1, max=MAX_LAYERS)
    size("hidden_size", 1024, "size of each hidden layer")
    rate("dropout", 0.2, "dropout of each hidden layer's output")
    rate("label_smoothing", 0.0, "label smoothing: probability spread over the other classes")
    return hparams
