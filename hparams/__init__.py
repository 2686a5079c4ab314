"""Registered hparams sets, a file a model family."""

from t2tp.hparams import transformer_lm  # noqa: F401  (it registers itself)
