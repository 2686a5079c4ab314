"""`t2tp_avg_checkpoints`: averages the variables of several checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from t2tp.quiet import quiet_import
from t2tp.trainer import console
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.flag_groups import version

WRONG_USAGE = 2

_INTRO = """
Averages the trainable variables of checkpoints, and their moving averages (ema_decay), in float64;
what the optimizer keeps, and the statistics of batch norms, are the newest one's. The
result is a checkpoint in the folder of a run, that of the newest one's step:

  t2tp_avg_checkpoints --output_dir=RUN --num_last_checkpoints=8 --output_path=AVERAGED
  t2tp_trainer --output_dir=AVERAGED --data_dir=D --schedule=evaluate
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line without the program's name; by default this process's.

    Returns:
      the exit code.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if bool(args.checkpoints) == bool(args.output_dir):
        parser.error("give either --checkpoints or --output_dir")
    try:
        print(_average(args))
    except UsageError as error:
        print(f"t2tp_avg_checkpoints: {error}", file=sys.stderr)
        return WRONG_USAGE
    return 0


def _average(args: argparse.Namespace) -> str:
    """Does it; says what was averaged."""
    # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
    with quiet_import():
        from t2tp.trainer import averaging, checkpointing
    console.use_plain_lines()
    with as_usage_error(OSError, LookupError, ValueError):
        if args.checkpoints:
            paths = [path for path in args.checkpoints.split(",") if path]
            checkpoints = [checkpointing.find(path) for path in paths]
        else:
            checkpoints = averaging.last_checkpoints(args.output_dir, args.num_last_checkpoints)
        made = averaging.average(checkpoints, args.output_path)
    if made.batch_statistics and len(checkpoints) > 1:
        first, count = made.batch_statistics[0], len(made.batch_statistics)
        print(
            f"t2tp_avg_checkpoints: warning: {count} moving means and variances of batch norms"
            f" ({first}, ...) are those of step {made.step} alone, and do not belong to the"
            " averaged weights: evaluation may be worse than that of the newest checkpoint.",
            file=sys.stderr,
        )
    moving = " and their moving averages (ema_decay)" if made.has_moving_averages else ""
    return "\n".join(
        [
            f"averaged the trainable variables{moving} of {len(checkpoints)} checkpoints:",
            *(f"  {each.path}" for each in checkpoints),
            f"in {made.folder}; all other variables are those of its step",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="t2tp_avg_checkpoints",
        description=_INTRO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument(
        "--checkpoints", default="", help="folders of checkpoints, separated by commas"
    )
    parser.add_argument("--output_dir", default="", help="folder of a run, in place of a list")
    parser.add_argument(
        "--num_last_checkpoints",
        type=_at_least_one,
        default=8,
        help="how many of the run's newest; 8 by default",
    )
    parser.add_argument(
        "--output_path", required=True, help="folder of the result; it is made if needed"
    )
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
