"""`t2tp_replay`: replays a step of a run, example by example."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict

from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.cli.spec_from_flags import spec_from_flags
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.replay import ReplayedStep, replay
from t2tp.trainer.run_dir import run_files

_SHOWN = 10


def run(invocation: Invocation) -> None:
    """Replays the step; prints a line of JSON for each example, and a summary on stderr.

    Raises:
      UsageError: the request is invalid.
    """
    flags = invocation.flags
    with as_usage_error(ValueError, LookupError, OSError):
        run_files.read_run(flags.output_dir)
        if flags.mesh_shape is None:
            flags["mesh_shape"].value = ""  # One device, whatever the run has.
        spec = spec_from_flags(flags)
        spec.check_same_data()
        rows = [int(row) for row in flags.without_rows]
        with building(spec.model):
            replayed = replay(spec, flags.step, rows)
    for example in replayed.examples:
        print(json.dumps(asdict(example)), flush=True)
    print(_summary(replayed), file=sys.stderr)


def _summary(replayed: ReplayedStep) -> str:
    lines = [
        f"step {replayed.step}, replayed from step {replayed.begun_from}:"
        f" {_shown(replayed.scalars)}",
        _comparison(replayed),
    ]
    if replayed.first_nonfinite:
        lines.append(f"the first tensor that is not finite is the {replayed.first_nonfinite}")
    elif replayed.first_unusual:
        lines.append(
            "the first tensor that is far larger than in the next batches is the"
            f" {replayed.first_unusual}"
        )
    lines.append("largest updates, relative to the variable:")
    lines += [f"  {x:9.3g}  {name}" for name, x in list(replayed.updates.items())[:_SHOWN]]
    lines.append("largest gradients:  row, norm, loss, text")
    lines += [
        f"  {x.row:4d}  {x.gradient_norm:9.4g}  {x.loss:8.4f}  {x.text[:100]!r}"
        for x in replayed.examples[:_SHOWN]
    ]
    return "\n".join(lines)


def _comparison(replayed: ReplayedStep) -> str:
    """Compares the replayed scalars with the run's log, in a line."""
    if not replayed.logged:
        return "the run's events have no report of this step with these rows"
    differing = replayed.differing
    verdict = f"different: {', '.join(differing)}" if differing else "equal, bit for bit"
    return f"the run reported {_shown(replayed.logged)}: {verdict}"


def _shown(scalars: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.9g}" for name, value in scalars.items())
