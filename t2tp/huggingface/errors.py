"""The error of this package."""

from __future__ import annotations


class ConversionError(ValueError):
    """A directory of Hugging Face cannot be converted; `str()` is a sentence that says why."""
