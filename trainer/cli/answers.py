"""Implements the flags that only print: `--registry_help` and `--print_hparams`."""

from t2tp import registry
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.experiment import SCHEDULES
from t2tp.trainer.run_dir.hparams_text import hparams_text


def print_registry(invocation: Invocation) -> None:
    """Prints the names of everything that is registered, and the schedules of `t2tp_trainer`."""
    print(f"{registry.help_text()}\n\nSchedules:\n  {', '.join(SCHEDULES)}")


def print_hparams(invocation: Invocation) -> None:
    """Prints the hparams that result from the flags."""
    with as_usage_error(ValueError, LookupError, OSError):
        print(hparams_text(hparams_to_print(invocation.flags)))
