"""The error that conversions raise."""


class ConversionError(ValueError):
    """A Hugging Face directory cannot be converted; `str()` is a sentence with the reason."""
