"""Registered hparams sets, a file a model family."""

from t2tp.hparams import (  # noqa: F401  (they register themselves)
    bert,
    gpt,
    image_transformer,
    llama,
    mlp,
    mtf_transformer,
    mtf_transformer2,
    multiquery,
    ranges,
    resnet,
    t5,
    transformer,
    transformer_encoder,
    transformer_lm,
    transformer_moe,
    vit,
    xmoe,
)
