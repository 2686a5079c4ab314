"""`t2tp_eval`: evaluates checkpoints of a run, on any split and any mesh. It writes no file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from absl import flags

from t2tp.mesh import processes
from t2tp.mesh.meeting import LOST_EXIT_CODE
from t2tp.quiet import quiet_import
from t2tp.trainer import flag_groups
from t2tp.trainer.errors import LostError, UsageError, as_usage_error
from t2tp.trainer.flag_groups import Group
from t2tp.trainer.t2tp_trainer import SIGNALLED, WRONG_USAGE
from t2tp.trainer.trainer_flags import MESH, PROCESSES, WHAT, WHERE

_INTRO = """
Evaluates checkpoints of a run. Prints a line of JSON for each on stdout, and at the end a table on
stderr. What is evaluated is what the run's folder says, unless a flag says otherwise:

  t2tp_eval --output_dir=O --data_dir=D
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code.
    """
    try:
        given = flag_groups.parse(GROUPS, sys.argv if arguments is None else arguments)
        if flag_groups.answered(given, _INTRO, GROUPS):
            return 0
        if not given.registry_help:
            flag_groups.check_given(given, ("output_dir", "data_dir"))
        with as_usage_error(ValueError):
            place = processes.find(given.num_processes, given.process_id, given.coordinator)
        with quiet_import():
            from t2tp.trainer import eval_command
        eval_command.run(given, place)
    except UsageError as error:
        print(f"t2tp_eval: {error}", file=sys.stderr)
        return WRONG_USAGE
    except LostError as error:
        print(f"t2tp_eval: {error}", file=sys.stderr)
        return LOST_EXIT_CODE
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


def _define_evaluation(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Checkpoints: their folders, with commas between, or 'all' of the run. By default the"
        " newest of the run.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "split",
        "validation",
        "The split: train, validation, test, or what the problem has. Each example counts once.",
        flag_values=ours,
    )
    flags.DEFINE_integer("eval_steps", -1, "Batches; 0 or -1: all.", flag_values=ours)


GROUPS = (Group("What to evaluate on", _define_evaluation), WHAT, WHERE, MESH, PROCESSES)

if __name__ == "__main__":
    sys.exit(main())
