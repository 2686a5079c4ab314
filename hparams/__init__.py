"""Registered hparams sets, one file per model family.

An hparams set is a function registered by its name that returns an `HParams`: the hyperparameters
of a model and its training, with their defaults, types and limits. `base` declares those that the
trainer reads (batch, mesh, layout, optimizer, schedule); the sets of a model build on it, and a
variant calls another set and changes some values. The model of a set is the one with which its name
begins, or the `model` that it is registered with. `ranges` has the search spaces of `t2tp_tune`.
"""

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
