"""`t2tp_trainer`: trains, evaluates and samples from a registered model on a registered problem."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from t2tp.trainer import trainer_flags
from t2tp.trainer.errors import UsageError
from t2tp.trainer.quiet import quiet_import

# Exit codes: what the user asked for cannot be done; SIGINT, as shells have it.
WRONG_USAGE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code.
    """
    try:
        flags = trainer_flags.parse(sys.argv if arguments is None else arguments)
        if flags.help:
            print(trainer_flags.help_text())
            return 0
        # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
        with quiet_import():
            from t2tp.trainer import command
        command.run(flags)
    except UsageError as error:
        print(f"t2tp_trainer: {error}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt as error:
        print(f"t2tp_trainer: {error or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
