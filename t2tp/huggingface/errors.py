"""The error of this package."""


class ConversionError(ValueError):
    """A directory of Hugging Face cannot be converted; `str()` is a sentence that says why."""
