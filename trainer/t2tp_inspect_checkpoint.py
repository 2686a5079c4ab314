"""`t2tp_inspect_checkpoint`: shows what is in a checkpoint, or compares two."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from t2tp.quiet import quiet_import
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.flag_groups import version

DIFFERENT, WRONG_USAGE = 1, 2

_INTRO = """
Shows each variable of a checkpoint in named dimensions, its dtype and size, and the mesh and layout
in which it was saved; all files are checked. With a second one: the variables that differ, in
presence, shape, dtype or values, and exit code 1 if there are any.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line without the program's name; by default this process's.

    Returns:
      the exit code.
    """
    args = _parser().parse_args(arguments)
    try:
        # TensorFlow takes seconds to import, and whoever mistyped a flag should not wait for it.
        with quiet_import():
            from t2tp.trainer import checkpointing, inspection
        with as_usage_error(OSError, LookupError, ValueError):
            first = checkpointing.find(args.path)
            first.verify()
            if args.other is None:
                print(inspection.describe(first))
                return 0
            second = checkpointing.find(args.other)
            second.verify()
            different = inspection.differences(first, second)
    except UsageError as error:
        print(f"t2tp_inspect_checkpoint: {error}", file=sys.stderr)
        return WRONG_USAGE
    print(f"{first.path} (step {first.step})\n{second.path} (step {second.step})")
    print("\n".join(different) or f"the same: {len(first.shapes())} variables")
    return DIFFERENT if different else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="t2tp_inspect_checkpoint",
        description=_INTRO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument(
        "path", help="a checkpoint's folder, or a run's, and then its newest checkpoint"
    )
    parser.add_argument("other", nargs="?", help="another one, to compare the two")
    return parser


if __name__ == "__main__":
    sys.exit(main())
