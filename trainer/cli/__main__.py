"""`python -m t2tp t2tp_trainer --model=...`: runs a program that is not on PATH."""

import re
import sys
from collections.abc import Sequence

from t2tp.suggestions import nearest
from t2tp.text_table import text_table
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import run_program
from t2tp.trainer.errors import UsageError


def main(command_line: Sequence[str]) -> int:
    """Runs the program named by the first argument, or lists the programs.

    Returns:
      The exit code.
    """
    name = command_line[0] if command_line else "--help"
    if name in ("-h", "--help"):
        print("python -m t2tp PROGRAM --help shows the flags of a program. The programs:\n")
        rows = [
            (each, re.split(r"[:.]\s", spec.intro.strip())[0]) for each, spec in PROGRAMS.items()
        ]
        print(text_table([(name, " ".join(text.split())) for name, text in rows], left=(0, 1)))
        return 0
    if name not in PROGRAMS:
        print(f"unknown program {name!r}: {nearest(name, PROGRAMS, 'programs')}", file=sys.stderr)
        return UsageError.exit_code
    return run_program(PROGRAMS[name], command_line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
