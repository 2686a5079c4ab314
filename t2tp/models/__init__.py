"""Registered models, written in named dimensions."""

from t2tp.models import (  # noqa: F401  (they register themselves)
    image_transformer,
    mlp,
    resnet,
    transformer,
    transformer_encoder,
    transformer_lm,
    transformer_moe,
    vit,
)
