"""The language model of the benchmarks as a registered model of t2tp."""

from __future__ import annotations

import language_model as lm

import t2tp.hparams
import t2tp.models  # noqa: F401
from t2tp import registry
from t2tp.models.model import Model

LAYOUT = "batch:data;heads:model;d_ff:model;vocab:model"


def model(
    sizes: lm.Sizes,
    dtype: str,
    max_length: int | None = None,
    mesh_shape: str = "",
    changes: str = "",
) -> Model:
    """Returns `transformer_lm` of these sizes, with hparams that match all peers' training.

    Args:
      sizes: sizes of the model.
      dtype: element type of activations.
      max_length: number of positions; by default the length of the data.
      mesh_shape: mesh shape; "": one device.
      changes: hparams that are set last.
    """
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.parse(
        f"d_model={sizes.d_model},d_ff={sizes.d_ff},num_heads={sizes.heads},d_kv={sizes.d_kv},"
        f"num_hidden_layers={sizes.layers},max_length={max_length or sizes.length},"
        f"layer_prepostprocess_dropout=0.0,clip_grad_norm={lm.CLIP_NORM},optimizer=adam,"
        f"learning_rate_schedule=constant,learning_rate_constant={lm.LEARNING_RATE},"
        f"optimizer_adam_beta1={lm.BETA1},optimizer_adam_beta2={lm.BETA2},"
        f"optimizer_adam_epsilon={lm.EPSILON},weight_decay=0.0,activation_dtype={dtype},"
        f"mesh_shape={mesh_shape},layout={LAYOUT if mesh_shape else ''}"
    )
    hparams.parse(changes)
    return registry.model("transformer_lm")(hparams, {"targets": sizes.vocab})
