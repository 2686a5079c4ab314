"""`t2tp_replay`: replays a step of a run, example by example."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace

from absl import flags as absl_flags

from t2tp.trainer.cli.spec_from_flags import spec_of_run
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.replay import ReplayedStep, replay
from t2tp.trainer.run_spec import RunSpec

_SHOWN = 10


def run(flags: absl_flags.FlagValues) -> None:
    """Replays the step; prints a line of JSON for each example, and a summary on stderr."""
    with as_usage_error(ValueError, LookupError, OSError):
        if flags.mesh_shape is None and flags.worker_gpu is None:
            # One device by default, whatever mesh the run has. --hparams may override this.
            flags["hparams"].value = ["mesh_shape=", *flags.hparams]
        spec = spec_of_run(flags)
        spec.check_same_data()
        for row in flags.without_rows:
            if not row.isdecimal():
                raise UsageError(f"--without_rows: {row!r} is no row: expected numbers, as in 3,17")
        with building(spec.model):
            replayed = replay(spec, flags.step, [*map(int, flags.without_rows)])
    for example in replayed.examples:
        print(json.dumps(asdict(example)), flush=True)
    print(_summary(replayed, spec), file=sys.stderr)


def _summary(replayed: ReplayedStep, spec: RunSpec) -> str:
    lines = [
        f"step {replayed.step}, replayed from step {replayed.begun_from}:"
        f" {_shown(replayed.scalars)}",
        _comparison(replayed, spec),
    ]
    if replayed.first_nonfinite:
        lines.append(f"the first tensor that is not finite is the {replayed.first_nonfinite}")
    lines.append("largest updates, relative to the variable:")
    lines += [f"  {x:9.3g}  {name}" for name, x in list(replayed.updates.items())[:_SHOWN]]
    lines.append("largest gradients:  row, norm, loss, text")
    lines += [
        f"  {x.row:4d}  {x.gradient_norm:9.4g}  {x.loss:8.4f}  {x.text[:100]!r}"
        for x in replayed.examples[:_SHOWN]
    ]
    return "\n".join(lines)


def _comparison(replayed: ReplayedStep, spec: RunSpec) -> str:
    """Compares the replayed scalars with the run's events, in a line."""
    if not replayed.logged:
        return "the run's events have no report of this step with these rows"
    reported = f"the run reported {_shown(replayed.logged)}"
    if not replayed.differing:
        return f"{reported}: equal, bit for bit"
    shown = ", ".join(f"{name} by {x:.1e} (relative)" for name, x in replayed.differing.items())
    run_hparams = spec.saved.hparams if spec.saved else spec.hparams
    layout, run_layout = spec.layout, replace(spec, hparams=run_hparams).layout
    is_exact = 0 < run_layout.exact_sums == layout.exact_sums
    if str(layout) == str(run_layout) or is_exact:
        cause = "layouts do not explain this: machine, data, flags or program have changed"
    else:
        cause = f"the run has {run_layout}, and rounding differs between layouts without exact_sums"
    return f"{reported}: different, {shown}; {cause}"


def _shown(scalars: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.9g}" for name, value in scalars.items())
