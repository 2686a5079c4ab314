"""`t2tp_avg_checkpoints`: averages the variables of several checkpoints."""

import sys

from absl import flags as absl_flags

from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.run_dir import averaging
from t2tp.trainer.run_dir.find_checkpoint import find_all


def run(flags: absl_flags.FlagValues) -> None:
    """Averages the checkpoints that the flags name, and prints their paths."""
    if bool(flags.checkpoints) == bool(flags.output_dir):
        raise UsageError("give either --checkpoints or --output_dir")
    with as_usage_error(OSError, LookupError, ValueError):
        if flags.checkpoints:
            checkpoints = find_all(flags.checkpoints)
        else:
            checkpoints = averaging.last_checkpoints(flags.output_dir, flags.num_last_checkpoints)
        written = averaging.average(checkpoints, flags.output_path)
    if written.batch_statistics and len(checkpoints) > 1:
        first, count = written.batch_statistics[0], len(written.batch_statistics)
        print(
            f"t2tp_avg_checkpoints: warning: {count} moving means and variances of batch norms"
            f" ({first}, ...) come from step {written.step} alone and do not match the averaged"
            " weights: the metrics may be worse than the latest checkpoint's.",
            file=sys.stderr,
        )
    moving = " and their moving averages (ema_decay)" if written.has_moving_averages else ""
    print(f"averaged the trainable variables{moving} of {len(checkpoints)} checkpoints:")
    for each in checkpoints:
        print(f"  {each.path}")
    print(f"in {written.directory}; all other variables come from step {written.step}")
