"""`t2tp_trainer`: trains, evaluates and samples from a registered model on a registered problem."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from t2tp.mesh import processes
from t2tp.mesh.meeting import LOST_EXIT_CODE
from t2tp.quiet import quiet_import
from t2tp.trainer import flag_groups, trainer_flags
from t2tp.trainer.errors import LostError, UsageError, as_usage_error

# Exit codes: what the user asked for cannot be done; ended by a signal, as shells have it.
WRONG_USAGE = 2
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code.
    """
    who, speaks = "t2tp_trainer", True
    try:
        flags = trainer_flags.parse(sys.argv if arguments is None else arguments)
        if trainer_flags.answered(flags):
            return 0
        if not (flags.registry_help or flags.print_hparams):
            flag_groups.check_given(flags, ("output_dir", "data_dir"))
        with as_usage_error(ValueError):
            place = processes.find(flags.num_processes, flags.process_id, flags.coordinator)
        if place is not None:
            who += f": process {place.process_id} of {place.num_processes}"
            speaks = place.process_id == 0
        # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
        with quiet_import():
            from t2tp.trainer import command
        command.run(flags, place)
    except UsageError as error:
        print(f"{who}: {error}", file=sys.stderr)
        return WRONG_USAGE
    except LostError as error:
        print(f"{who}: {error}", file=sys.stderr)
        return LOST_EXIT_CODE
    except KeyboardInterrupt as error:
        if speaks:
            print(f"t2tp_trainer: {str(error) or 'interrupted'}", file=sys.stderr)
        return SIGNALLED + getattr(error, "signal_number", signal.SIGINT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
