"""`t2tp_plan`: predicts the cost of a training step on a cluster, or searches for a layout."""

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags as absl_flags
from tqdm import tqdm

from t2tp import problems, registry
from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.models.image_classifier import ImageClassifier
from t2tp.planner import ClusterFile, Plan, Request
from t2tp.planner.candidates import CHOSEN, RESET
from t2tp.planner.report import plan_report, search_report, training_text
from t2tp.planner.search import Search, days_of, pareto, price_of
from t2tp.problems.problem import Problem
from t2tp.report.parts import Report
from t2tp.suggestions import nearest
from t2tp.trainer.cli.config_file import AUTO
from t2tp.trainer.cli.spec_from_flags import hparams_to_print
from t2tp.trainer.cli.train import building
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hparams_fit import check_fits, read_set
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.planning import IMAGE_SHAPE, image_shape_of, request

# Units of --train_tokens and of --global_batch_tokens. A unit of batches is a power of two, so that
# meshes divide batches evenly.
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_UNITS_OF_BATCH = {"": 1, "K": 2**10, "M": 2**20}

# Flags that only t2tp_plan has, and flags that t2tp_trainer needs too, to build the same model.
_OF_PLAN = ("cluster", "stack", "vocab_size")
_DATA = ("t2t_usr_dir", "problem", "problem_options", "data_dir")
_SHARED = (*_DATA, "model", "hparams_set", "teacher")


def run(flags: absl_flags.FlagValues) -> None:
    """Prints the plan, or the proposals of a search, as text or JSON."""
    with as_usage_error(ValueError, LookupError, OSError):
        cluster = _cluster(flags)
        # If a flag were ignored, the user would think that the plan includes it.
        for name, reason in _without_effect(flags, cluster):
            raise UsageError(f"--{name} has no effect: {reason}")
        train_tokens = _number(flags, "train_tokens", _UNITS)
        hparams = hparams_to_print(flags)
        check_fits(flags.model, flags.hparams_set, hparams)
        if flags.search:
            _set_batch(flags, hparams)
        size, shape = _vocab_size(flags), _image_shape(flags)
        planned = request(flags.model, hparams, size, shape, flags.teacher)
    # The program is built only here, and may show that sizes which passed all checks do not fit.
    with building(flags.model):
        if flags.search:
            _search(flags, planned, cluster, train_tokens)
        else:
            _plan(flags, planned, cluster, train_tokens)


def _plan(
    flags: absl_flags.FlagValues, planned: Request, cluster: ClusterFile, train_tokens: float
) -> None:
    plan = planned.plan(cluster)
    _show(flags, plan_report(plan), _entry(plan, train_tokens))
    if train_tokens and not flags.json:  # JSON is for programs: nothing may follow it.
        print(f"\n{flags.train_tokens} tokens take {training_text(plan, train_tokens)}.")


def _search(
    flags: absl_flags.FlagValues, planned: Request, cluster: ClusterFile, train_tokens: float
) -> None:
    if flags.days and not train_tokens:
        raise UsageError("--days needs --train_tokens, the tokens of the whole training")
    if not flags.devices and not flags.days:
        raise UsageError(
            "--search needs --devices, the number of devices, or --days, the time limit of the"
            " training"
        )
    fixed, rules = _fixed(flags, planned.hparams)
    search = Search(
        planned,
        cluster,
        flags.devices or 1,  # With --days, `fewest_devices` doubles it.
        sequences_per_batch(planned.hparams, Layout.from_hparams(planned.hparams)),
        flags.max_tensor_parallel,
        fixed,
        rules,
        flags.top,
        functools.partial(_flags_text, flags),
        functools.partial(tqdm, desc="planning", unit=" programs", mininterval=1.0, leave=False),
    )
    days = flags.days
    proposals = search.fewest_devices(train_tokens, days) if days else search.run()
    # The proposals' flags are for both programs; t2tp_trainer does not know these.
    own = [f"--{name}={flags[name].value}" for name in _OF_PLAN if flags[name].value]
    front = pareto(proposals)
    entries = [
        {
            "flags": each.flags,
            "hparams": each.candidate.hparams(),
            "pareto": each in front,
            "plan": _entry(each.plan, train_tokens),
        }
        for each in proposals
    ]
    _show(flags, search_report(proposals, train_tokens, shlex.join(own)), entries)


def _show(flags: absl_flags.FlagValues, report: Report, entries: object) -> None:
    """Prints the report, or the entries as JSON; also draws the report if --html names a file."""
    if flags.html:
        with as_usage_error(OSError):
            report.save(flags.html)
    print(json.dumps(entries, indent=2) if flags.json else report)


def _entry(plan: Plan, train_tokens: float) -> dict[str, Any]:
    training = {"days": days_of(plan, train_tokens), "price": price_of(plan, train_tokens)}
    return plan.to_dict() | ({"training": training} if train_tokens else {})


def _flags_text(flags: absl_flags.FlagValues, hparams: HParams) -> str:
    """Returns the flags of t2tp_plan and t2tp_trainer that give these hparams."""
    given = [f"--{name}={flags[name].value}" for name in _SHARED if flags[name].value]
    own = [f"--{name}={hparams.get(name)}" for name in ("mesh_shape", "layout")]
    # Only what differs from the set, in a line that a person can read.
    names = [name for name, *_ in read_set(flags.hparams_set).diff(hparams)]
    changed = hparams.assignments(name for name in names if name not in ("mesh_shape", "layout"))
    return shlex.join([*given, *own, *([f"--hparams={changed}"] if changed else [])])


def _cluster(flags: absl_flags.FlagValues) -> ClusterFile:
    cluster = ClusterFile.load(flags.cluster, flags.stack)
    # --headroom=0 is a valid fraction.
    headroom = cluster.headroom if flags.headroom is None else flags.headroom
    return dataclasses.replace(cluster, processes=flags.processes, headroom=headroom)


def _without_effect(
    flags: absl_flags.FlagValues, cluster: ClusterFile
) -> Iterator[tuple[str, str]]:
    """Yields the given flags without effect on this plan, with the reason."""
    if flags.search:
        preset = read_set(flags.hparams_set).copy()
        # Only the parser knows which commas separate hparams and which are inside a value.
        for name in (name for text in flags.hparams for name in preset.parse(text)):
            if name in ("mesh_shape", "layout"):
                yield f"hparams={name}", "--search chooses mesh and layout"
            if name in (*CHOSEN, *RESET):
                yield f"hparams={name}", f"--search chooses it; use --fix={name}=..."
    reasons = {}
    if not cluster.device.cores:
        reasons["processes"] = f"the devices of {cluster.name} are not cores of a host"
    if not issubclass(registry.model(flags.model), ImageClassifier):
        reasons["image_shape"] = f"{flags.model} is not a classifier of images"
    if not flags.problem:
        reasons |= dict.fromkeys(("problem_options", "data_dir"), "it belongs to --problem")
    elif flags.vocab_size is not None:
        reasons["data_dir"] = "--vocab_size takes its place"
    yield from ((name, reason) for name, reason in reasons.items() if flags[name].present)
    for name in ("mesh_shape", "layout"):
        if flags[name].value == AUTO:
            yield f"{name}=auto", "use --search --devices=N"


def _set_batch(flags: absl_flags.FlagValues, hparams: HParams) -> None:
    """Fixes the global batch, so that it does not depend on the mesh."""
    tokens, length = _number(flags, "global_batch_tokens", _UNITS_OF_BATCH), hparams.max_length
    # Rounded, the batch would not be the one that the learning rate was chosen for.
    if tokens % length or 0 < tokens < length:
        below = int(tokens // length) * length
        sizes = " or ".join(str(n) for n in (below, below + length) if n)
        raise UsageError(
            f"--global_batch_tokens={flags.global_batch_tokens} is not a multiple of"
            f" max_length={length}: use {sizes}"
        )
    layout = Layout.from_hparams(hparams)
    rows = int(tokens) // length if tokens else sequences_per_batch(hparams, layout)
    hparams.set("batch_size_unit", "sequences_per_batch")
    hparams.set("batch_size", rows)


def _number(flags: absl_flags.FlagValues, name: str, units: Mapping[str, int]) -> float:
    """Reads a number of tokens such as 4M; 0 if the flag is not given."""
    given = flags[name].value
    if given is None:
        return 0.0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", given.strip().upper())
    number = float(match[1]) * units[match[2]] if match and match[2] in units else 0.0
    if not number:
        raise UsageError(f"--{name}={given}: use a number of tokens such as 4{list(units)[-1]}")
    return number


def _fixed(flags: absl_flags.FlagValues, hparams: HParams) -> tuple[dict[str, Any], list[str]]:
    """Parses --fix: returns hparams by name, and layout rules."""
    fixed: dict[str, Any] = {}
    rules = []
    known = [name for name in (*CHOSEN, *RESET) if name in hparams]
    # A layout separates its rules by `;`, and --hparams its assignments by `,`.
    for part in (part.strip() for given in flags.fix for part in re.split("[;,]", given)):
        name, separator, _ = part.partition("=")
        if not separator and ":" in part:
            rules.append(part)
        elif not separator or name not in known:
            raise UsageError(
                f"--fix={part}: expected a layout rule such as heads:model, or an hparam such as"
                f" zero_stage=1; {nearest(name, known, 'hparams')}"
            )
        else:
            fixed |= hparams.copy().parse(part)
    return fixed, rules


def _vocab_size(flags: absl_flags.FlagValues) -> int:
    """Returns --vocab_size, or the vocabulary size of the problem's prepared data."""
    if flags.vocab_size is not None:
        return flags.vocab_size
    # There is no default: the logits may be the largest tensor of the step.
    if not flags.problem or not flags.data_dir:
        raise UsageError("--vocab_size is missing: give it, or --problem and --data_dir")
    return _problem(flags).vocab_sizes(flags.data_dir)["targets"]


def _problem(flags: absl_flags.FlagValues) -> Problem:
    return problems.find(flags.problem, flags.problem_options or "")


def _image_shape(flags: absl_flags.FlagValues) -> Sequence[int]:
    if not flags.image_shape:
        return image_shape_of(_problem(flags)) if flags.problem else IMAGE_SHAPE
    sizes = [int(size) for size in flags.image_shape if size.strip().isdecimal()]
    if len(sizes) != 3 or min(sizes) < 1:
        raise UsageError(
            f"--image_shape={','.join(flags.image_shape)}: height, width and channels, as in"
            " 224,224,3"
        )
    return sizes
