"""Implements the flags that only print: `--registry_help` and `--print_hparams`."""

import textwrap

from absl import flags as absl_flags

from t2tp import registry
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.experiment import SCHEDULES

_INDENT = " " * 4


def print_registry(flags: absl_flags.FlagValues) -> None:
    """Prints the names of everything that is registered, and the schedules of `t2tp_trainer`."""
    print(f"{registry.help_text()}\n\nSchedules:\n  {', '.join(SCHEDULES)}")


def print_hparams(flags: absl_flags.FlagValues) -> None:
    """Prints the hparams that result from the flags, each with its valid values and help."""
    with as_usage_error(ValueError, LookupError, OSError):
        hparams = hparams_to_print(flags)
    for name, value in hparams.values().items():
        print(f"{name}={value}")
        comment = f"{hparams.expected(name)}; {hparams.help(name)}".removesuffix("; ")
        print(textwrap.fill(comment, 100, initial_indent=_INDENT, subsequent_indent=_INDENT))
