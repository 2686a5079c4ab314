"""Implements the flags that only print: `--registry_help` and `--print_hparams`."""

import textwrap
from collections.abc import Iterator

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.experiment import SCHEDULES


def print_registry(invocation: Invocation) -> None:
    """Prints the names of everything that is registered, and the schedules of `t2tp_trainer`."""
    print(f"{registry.help_text()}\n\nSchedules:\n  {', '.join(SCHEDULES)}")


def print_hparams(invocation: Invocation) -> None:
    """Prints the hparams that result from the flags."""
    with as_usage_error(ValueError, LookupError, OSError):
        print(hparams_text(hparams_to_print(invocation.flags)))


_WIDTH = 100


def hparams_text(hparams: HParams) -> str:
    """Formats each hparam's value, valid values and help."""
    return "\n".join(_lines(hparams))


def _lines(hparams: HParams) -> Iterator[str]:
    for name, value in hparams.values().items():
        yield f"{name}={value}"
        comment = f"{hparams.expected(name)}; {hparams.help(name)}".removesuffix("; ")
        yield textwrap.fill(comment, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
