"""Registered hparams sets: one TOML file per model family.

An hparams set is registered by its name and returns an `HParams`: the hyperparameters of a model
and its training, with their defaults, types and limits. `declarations.toml` declares them in
groups, and `base` reads it: `base_hparams` has those that the trainer reads (batch, mesh, layout,
optimizer, schedule). A set is a table in the TOML file of its family, such as gpt.toml; see
`variants`. The model of a set is the one with which its name begins, or the `model` that it is
registered with. `ranges.toml` has the search spaces of `t2tp_tune`.
"""

from t2tp.hparams import ranges, variants  # noqa: F401  (they register themselves)
