"""Registered models, written in named dimensions."""

from t2tp.models import transformer_lm  # noqa: F401  (it registers itself)
