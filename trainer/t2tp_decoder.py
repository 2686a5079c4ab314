"""`t2tp_decoder`: decodes text, symbols or pictures with the model of a run, and scores text."""

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
Decodes with the newest checkpoint of a run. The model, the problem and the mesh are those that the
run's folder says, unless a flag says otherwise.

  t2tp_decoder --output_dir=RUN --data_dir=D --decode_from_file=sources.txt
  t2tp_decoder --output_dir=RUN --data_dir=D --split=test --decode_hparams=beam_size=4,alpha=0.6
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
        # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
        with quiet_import():
            from t2tp.trainer import decoder_command
        decoder_command.run(given, place)
    except UsageError as error:
        print(f"t2tp_decoder: {error}", file=sys.stderr)
        return WRONG_USAGE
    except LostError as error:
        print(f"t2tp_decoder: {error}", file=sys.stderr)
        return LOST_EXIT_CODE
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


def _define_decoding(ours: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "decode_from_file",
        None,
        "File to decode: a source, or of a language model a prompt, on each line.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "decode_to_file",
        None,
        "File to write, with a line for each of the sources. By default it is named after what is"
        " decoded. With --split it is what the files' names begin with.",
        flag_values=ours,
    )
    flags.DEFINE_bool(
        "decode_interactive", False, "Decode what is typed, line by line.", flag_values=ours
    )
    flags.DEFINE_string(
        "decode_reference",
        None,
        "With --decode_from_file: a file of references, a line for each source, to score against.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "decode_prefix_file",
        None,
        "With --decode_from_file: a file of how each result begins, a line for each source.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "split",
        None,
        "Decode this split of the problem: train, validation, test, or what it has.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "score_file",
        None,
        "File of inputs<TAB>targets (of a language model: targets), of which the log-probabilities"
        " of the targets are printed, or written to --decode_to_file.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "decode_hparams",
        "",
        "How to decode, as in beam_size=4,alpha=0.6,extra_length=50 or temperature=0.8,top_k=40;"
        " see docs/decoding.md.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Decode with this checkpoint in place of the newest of the run.",
        flag_values=ours,
    )


GROUPS = (Group("What to decode", _define_decoding), WHAT, WHERE, MESH, PROCESSES)

if __name__ == "__main__":
    sys.exit(main())
