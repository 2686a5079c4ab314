"""`t2tp_plan`: predicts what a training step costs on a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence

from absl import flags as absl_flags

from t2tp import problems
from t2tp.planner import ClusterFile
from t2tp.planner.text import text
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.planning import IMAGE_SHAPE, request


def run(invocation: Invocation) -> None:
    """Prints the plan, as text or JSON.

    Raises:
      UsageError: a flag is invalid, or the layout cannot work.
    """
    flags = invocation.flags
    with as_usage_error(ValueError, LookupError, OSError):
        cluster = ClusterFile.load(flags.cluster, flags.stack)
        hparams = hparams_to_print(flags)
        wanted = request(flags.model, hparams, _vocab_size(flags), _image_shape(flags))
    with building(flags.model):
        plan = wanted.plan(cluster)
    print(json.dumps(plan.to_dict(), indent=2) if flags.json else text(plan))


def _vocab_size(flags: absl_flags.FlagValues) -> int:
    """Returns the given size, or that of the problem's prepared data."""
    if flags.vocab_size is not None:
        return flags.vocab_size
    if not flags.problem or not flags.data_dir:
        raise UsageError("--vocab_size is missing: give it, or --problem and --data_dir")
    problem = problems.find(flags.problem, flags.problem_options or "")
    return problem.vocab_sizes(flags.data_dir)["targets"]


def _image_shape(flags: absl_flags.FlagValues) -> Sequence[int]:
    if not flags.image_shape:
        return IMAGE_SHAPE
    sizes = tuple(int(size) for size in flags.image_shape)
    if len(sizes) != 3 or min(sizes) < 1:
        raise UsageError("--image_shape gives height, width and channels, as in 224,224,3")
    return sizes
