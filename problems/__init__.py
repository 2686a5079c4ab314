"""Registered problems: data, vocabulary, features, metrics."""

from t2tp.problems import (  # noqa: F401  (they register themselves)
    algorithmic,
    catalog_images,
    catalog_text,
    image_digits,
    python_stdlib,
    record_problems,
    text_files,
)
from t2tp.problems.lookup import find

__all__ = ["find"]
