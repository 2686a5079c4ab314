"""Registered hparams sets, a file a model family."""

from t2tp.hparams import (  # noqa: F401  (they register themselves)
    image_transformer,
    mlp,
    ranges,
    resnet,
    transformer,
    transformer_encoder,
    transformer_lm,
    transformer_moe,
    vit,
)
