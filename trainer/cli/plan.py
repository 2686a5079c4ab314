"""`t2tp_plan`: predicts what a training step costs on a cluster, or searches for a layout."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags as absl_flags

from t2tp import problems
from t2tp.atomic_file import write_text
from t2tp.hparam import HParams
from t2tp.planner import ClusterFile, Plan, Request
from t2tp.planner.html import page
from t2tp.planner.scaling import scaled_plans
from t2tp.planner.search import Found, Search, pareto
from t2tp.planner.search_text import search_text, training_text
from t2tp.planner.text import text
from t2tp.suggestions import nearest
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.planning import IMAGE_SHAPE, request

# Of a training's tokens; those of a batch are powers of two, which meshes divide.
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_UNITS_OF_BATCH = {"": 1, "K": 2**10, "M": 2**20}

# What --fix may name, besides rules of a layout.
_CHOSEN = (
    "microbatches",
    "pipeline_chunks",
    "pipeline_schedule",
    "recompute",
    "sequence_parallel",
    "zero_stage",
)


def run(invocation: Invocation) -> None:
    """Prints the plan, or the best layouts, as text or JSON.

    Raises:
      UsageError: a flag is invalid, the layout cannot work, or nothing fits.
    """
    flags = invocation.flags
    with as_usage_error(ValueError, LookupError, OSError):
        cluster = ClusterFile.load(flags.cluster, flags.stack).with_processes(flags.processes)
        hparams = hparams_to_print(flags)
        train_tokens = _number(flags, "train_tokens", _UNITS)
        if flags.search:
            _set_batch(flags, hparams)
        wanted = request(flags.model, hparams, _vocab_size(flags), _image_shape(flags))
    if flags.search:
        _search(flags, wanted, cluster, train_tokens)
        return
    with building(flags.model):
        plan = wanted.plan(cluster)
        _draw(flags, wanted, cluster, plan, ())
    if flags.json:
        print(json.dumps(plan.to_dict(), indent=2))
        return
    print(text(plan))
    if train_tokens:
        print(f"{flags.train_tokens} tokens take {training_text(plan, train_tokens)}.")


def _search(
    flags: absl_flags.FlagValues, wanted: Any, cluster: ClusterFile, train_tokens: float
) -> None:
    if flags.days and not train_tokens:
        raise UsageError("--days needs --train_tokens, the tokens of the whole training")
    if not flags.devices and not flags.days:
        raise UsageError(
            "--search needs --devices, the number of devices to plan for, or --days, in which the"
            " training is to be done"
        )
    with as_usage_error(ValueError):
        fixed, rules = _fixed(flags)
        search = Search(
            wanted,
            cluster,
            flags.devices or 1,
            sequences_per_batch(wanted.hparams),
            flags.max_tensor_parallel,
            fixed,
            rules,
            flags.top,
        )
        found = search.until(train_tokens, flags.days) if flags.days else search.run()
        best = dataclasses.replace(
            wanted, hparams=found[0].candidate.applied(search.request.hparams)
        )
        _draw(flags, best, cluster, found[0].plan, found)
    if flags.json:
        front = pareto(found)
        print(json.dumps([_entry(each, each in front) for each in found], indent=2))
    else:
        print(search_text(found, train_tokens))


def _draw(
    flags: absl_flags.FlagValues,
    wanted: Request,
    cluster: ClusterFile,
    plan: Plan,
    found: Sequence[Found],
) -> None:
    """Writes the page of --html, if it is given."""
    if not flags.html:
        return
    with as_usage_error(OSError):
        write_text(flags.html, page(plan, found, scaled_plans(wanted, cluster)))


def _entry(found: Found, is_in_front: bool) -> dict[str, Any]:
    return {
        "flags": found.candidate.flags(),
        "hparams": found.candidate.hparams(),
        "pareto": is_in_front,
        "plan": found.plan.to_dict(),
    }


def _set_batch(flags: absl_flags.FlagValues, hparams: HParams) -> None:
    """Fixes the global batch, whatever the mesh."""
    tokens = _number(flags, "global_batch_tokens", _UNITS_OF_BATCH)
    rows = round(tokens / hparams.max_length) if tokens else sequences_per_batch(hparams)
    if rows < 1:
        raise UsageError(
            f"--global_batch_tokens={flags.global_batch_tokens} is less than a row of"
            f" max_length={hparams.max_length} tokens"
        )
    hparams.set("batch_size_unit", "sequences_per_batch")
    hparams.set("batch_size", rows)


def _number(flags: absl_flags.FlagValues, name: str, units: Mapping[str, int]) -> float:
    """Reads a number of tokens such as 4M; 0 if the flag is not given."""
    given = flags[name].value
    if given is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", given.strip().upper())
    if match is None or match[2] not in units:
        raise UsageError(f"--{name}={given}: a number of tokens such as 4{list(units)[-1]}")
    return float(match[1]) * units[match[2]]


def _fixed(flags: absl_flags.FlagValues) -> tuple[dict[str, Any], list[str]]:
    """Returns the fixed hparams, and the rules that a layout must have."""
    fixed: dict[str, Any] = {}
    rules = []
    for given in flags.fix:
        for part in re.split("[;,]", given):
            name, separator, value = part.partition("=")
            if not separator:
                rules.append(part.strip())
            elif name not in _CHOSEN:
                raise UsageError(f"--fix={given}: {nearest(name, _CHOSEN, 'choices')}")
            else:
                fixed[name] = _value(value)
    return fixed, rules


def _value(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if value.isdecimal() else value


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
