"""`t2tp_inspect_checkpoint`: shows the contents of a checkpoint, or compares two."""

from absl import flags as absl_flags

from t2tp.checkpoint import inspection
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.run_dir.find_checkpoint import find

DIFFERENT = 1


def run(flags: absl_flags.FlagValues, *paths: str) -> int:
    """Prints a checkpoint's variables, or the differences of two; returns the exit code."""
    with as_usage_error(OSError, LookupError, ValueError):
        first, *others = [find(path) for path in paths]
        for each in (first, *others):
            each.verify()
        if not others:
            print(inspection.describe(first))
            return 0
        (second,) = others
        different = inspection.differences(first, second)
    print(f"{first.path} (step {first.step})\n{second.path} (step {second.step})")
    print("\n".join(different) or f"the same: {len(first.shapes())} variables")
    return DIFFERENT if different else 0
