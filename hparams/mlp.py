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


@registry.register_hparams
def mlp_tiny() -> HParams:
    """Two hidden layers of 128: for tests, demos and CPUs."""
    hparams = mlp_base()
    hparams.batch_size = 64
    hparams.hidden_size = 128
    hparams.dropout = 0.1
    hparams.learning_rate_constant = 3e-3
    return hparams


@registry.register_hparams
def mlp_small() -> HParams:
    """Two hidden layers of 256."""
    hparams = mlp_base()
    hparams.hidden_size = 256
    return hparams


@registry.register_hparams
def mlp_large() -> HParams:
    """Four hidden layers of 4096."""
    hparams = mlp_base()
    hparams.num_hidden_layers = 4
    hparams.hidden_size = 4096
    hparams.learning_rate_constant = 3e-4
    return hparams
