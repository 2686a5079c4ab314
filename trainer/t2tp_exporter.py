"""`t2tp_exporter`: writes the model of a run as a SavedModel."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from absl import flags

from t2tp.quiet import quiet_import
from t2tp.trainer import flag_groups
from t2tp.trainer.errors import UsageError
from t2tp.trainer.flag_groups import Group
from t2tp.trainer.t2tp_trainer import SIGNALLED, WRONG_USAGE
from t2tp.trainer.trainer_flags import WHAT, WHERE

_INTRO = """
Writes the newest checkpoint of a run, trained on whatever mesh, as a SavedModel: a new folder in
OUTPUT_DIR/export, named after the time. Plain TensorFlow loads it.

  t2tp_exporter --output_dir=RUN --data_dir=D --decode_hparams=beam_size=4,alpha=0.6
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
        # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
        with quiet_import():
            from t2tp.trainer import exporter_command
        exporter_command.run(given)
    except UsageError as error:
        print(f"t2tp_exporter: {error}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


def _define_exporting(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "export_dir",
        None,
        "Folder of the exported models, each in a folder of its own; by default OUTPUT_DIR/export.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "decode_hparams",
        "",
        "How the exported model decodes, as in beam_size=4,alpha=0.6,extra_length=50; batch_size,"
        " by default 1, is how many rows of a request it decodes together.",
        flag_values=ours,
    )
    flags.DEFINE_integer(
        "max_input_length",
        None,
        "Most symbols of inputs or of a prompt; by default the model's max_length.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Export this checkpoint in place of the newest of the run.",
        flag_values=ours,
    )


GROUPS = (Group("What to export", _define_exporting), WHAT, WHERE)

if __name__ == "__main__":
    sys.exit(main())
