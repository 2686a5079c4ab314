"""Registered problems: data, vocabulary, features, metrics."""

from t2tp.problems import python_stdlib  # noqa: F401  (it registers itself)
