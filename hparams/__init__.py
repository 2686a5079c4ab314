"""Registered hparams sets, one file per model family.

An hparams set is a function registered by its name that returns an `HParams`: the hyperparameters
of a model and its training, with their defaults, types and limits. `base` declares those that the
trainer reads (batch, mesh, layout, optimizer, schedule), and a set of each model declares the
model's own. The model of a set is the one with which its name begins, or the `model` that it is
registered with. A set that only changes values of another set is a table in the TOML file of its
family, such as gpt.toml; see `variants`. `ranges` has the search spaces of `t2tp_tune`.
"""

from t2tp.hparams import (  # noqa: F401  (they register themselves)
    image_transformer,
    mlp,
    ranges,
    resnet,
    transformer,
    transformer_encoder,
    transformer_lm,
    transformer_moe,
    variants,
    vit,
)
