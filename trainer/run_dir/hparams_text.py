"""The output of `--print_hparams`."""

import textwrap
from collections.abc import Iterator

from t2tp.hparam import HParams

_WIDTH = 100


def hparams_text(hparams: HParams) -> str:
    """Formats each hparam's value, valid values and help."""
    return "\n".join(_lines(hparams))


def _lines(hparams: HParams) -> Iterator[str]:
    for name, value in hparams.values().items():
        yield f"{name}={value}"
        comment = f"{hparams.expected(name)}; {hparams.help(name)}".removesuffix("; ")
        yield textwrap.fill(comment, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
