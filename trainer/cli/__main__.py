"""`python -m t2tp.trainer.cli t2tp_trainer --model=...`: runs a program that is not on PATH."""

import sys
from collections.abc import Sequence

from t2tp.suggestions import nearest
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import run_program
from t2tp.trainer.errors import UsageError


def main(command_line: Sequence[str]) -> int:
    """Runs the program named by the first argument; returns the exit code."""
    name = command_line[0] if command_line else ""
    if name not in PROGRAMS:
        print(f"unknown program {name!r}: {nearest(name, PROGRAMS, 'programs')}", file=sys.stderr)
        return UsageError.exit_code
    return run_program(PROGRAMS[name], command_line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
