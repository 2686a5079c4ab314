"""Bytes and seconds as text."""


def size(num_bytes: float) -> str:
    """Formats bytes: `144 B`, `1.5 GiB`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{_digits(num_bytes / scale)} {unit}"
    return f"{num_bytes:,.0f} B"


def duration(seconds: float) -> str:
    """Formats seconds: `1.23 s`, `4.56 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds * 1e6)} us"


def _digits(number: float) -> str:
    """Formats a number with at least three digits, and without an exponent."""
    return f"{number:,.3g}" if abs(number) < 999.5 else f"{number:,.0f}"
