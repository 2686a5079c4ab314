"""Registered hparams sets: one TOML file per model family.

An hparams set is registered by its name and returns an `HParams`: the hyperparameters of a model
and its training, with their defaults, types and limits. `declarations.toml` declares them in
groups, and `base` reads it: `base_hparams` has the hyperparameters of the trainer (batch, mesh,
layout, optimizer, schedule). A set is a table in the TOML file of its family, such as gpt.toml; see
`base`. A set may be registered with a `model`. Otherwise the set's model is the model with the
longest name that begins the set's name. `ranges.toml` has the search spaces of `t2tp_tune`.
"""

from t2tp.hparams import base  # noqa: F401  (it registers the sets)
