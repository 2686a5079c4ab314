"""Makes a problem's data in a folder: downloads, vocabulary, shards, and at last the manifest."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from t2tp.problems import manifest, overlap, publish
from t2tp.problems.columns import open_columns
from t2tp.problems.generation import GenerationSettings, bad_limit, make_shards
from t2tp.problems.manifest import FileState, Manifest, SplitSizes
from t2tp.problems.overlap import Split
from t2tp.problems.sample_digest import TEXTS_NOTE, ChangedSourcesError
from t2tp.problems.samples import BadSamples, ShuffledSamples, open_samples, remove_spooled
from t2tp.problems.shards import finished_names, read_checks

if TYPE_CHECKING:
    from t2tp.problems.problem import Problem

# Bad samples that are named.
_NAMED = 10

# What the files depend on, beside our own code.
_PACKAGES = ("t2tp", "numpy", "sentencepiece", "tensorflow-datasets")


def make(
    problem: Problem,
    folder: Path,
    tmp_dir: str | PathLike[str] | None,
    settings: GenerationSettings,
) -> None:
    """Makes what `folder` does not have yet, under `publish.only_one_maker`; it appears at the end.

    Args:
        problem: whose data.
        folder: where they will be.
        tmp_dir: as of `Problem.prepare`.
        settings: how they are made.
    """
    logging.info("making the data of %s in %s", problem.name, folder)
    plan = _plan(problem, settings, beside=True)
    # A user edits what is beside the problem, such as a model, while the data are being made.
    while_made = _plan(problem, settings, beside=False)
    with publish.new_folder(folder, plan, is_worth_keeping=_has_shards) as partial:
        try:
            _make_all(problem, partial, tmp_dir, settings)
        except ChangedSourcesError as changed:
            logging.warning("%s: what was made of them is thrown away, and made anew", changed)
            publish.clear(partial)
            _make_all(problem, partial, tmp_dir, settings)
        if while_made != _plan(problem, settings, beside=False):
            publish.clear(partial)
            raise ValueError(
                f"what {problem.name} is made from has changed while it was read: run again"
            )


def _make_all(
    problem: Problem,
    partial: Path,
    tmp_dir: str | PathLike[str] | None,
    settings: GenerationSettings,
) -> None:
    remove_spooled(partial)
    with publish.scratch_folder(partial, tmp_dir) as scratch:
        manifest.write_options(partial, problem.made_with())
        description = problem.make(partial, scratch, settings)
    (partial / TEXTS_NOTE).unlink(missing_ok=True)
    describe(partial, **description)


def _has_shards(partial: Path) -> bool:
    return any(finished_names(folder) for folder in (partial, *partial.iterdir()))


def fill(
    problem: Problem, folder: Path, scratch: Path, settings: GenerationSettings
) -> dict[str, Any]:
    """Puts vocabulary and shards into a folder; see `Problem.make`.

    Raises:
        ValueError: a split has no samples, or all were skipped.
    """
    problem.download(folder, scratch)
    opened = {split: open_samples(problem, split, folder, scratch) for split in problem.splits}
    counts = {split: len(samples) for split, samples in opened.items()}
    for split, count in counts.items():
        if not count:
            raise ValueError(f"{problem.name} has no samples for its split {split}")
    bad = BadSamples(problem.name, bad_limit(counts, settings))
    vocabulary = problem.make_vocabulary(
        folder, lambda split: ShuffledSamples(opened[split], split, bad)
    )
    sizes, files = make_shards(problem, folder, scratch, counts, settings)
    remove_spooled(folder)
    _report_skipped(problem, sizes, _bad_samples(folder))
    columns = problem.columns(folder)
    stored = {
        split: [open_columns(folder, split, made.shards, columns)] for split, made in sizes.items()
    }
    return {
        "problem": problem.name,
        "options": problem.made_with(),
        "origin": problem.origin(folder, scratch),
        "columns": columns,
        "splits": sizes,
        "overlaps": report_overlaps(problem.name, stored),
        "vocabulary": vocabulary,
        "known": files,
    }


def describe(
    folder: Path,
    *,
    problem: str,
    options: dict[str, Any],
    origin: dict[str, Any],
    columns: Mapping[str, np.dtype],
    splits: dict[str, SplitSizes],
    overlaps: dict[str, dict[str, int]],
    vocabulary: str,
    known: Mapping[str, FileState],
) -> None:
    """Writes the manifest of a folder that has everything else.

    Args:
        folder: what is described.
        problem, options, origin, columns, splits, overlaps: see `Manifest`.
        vocabulary: the name of its file; "" without one.
        known: the states of files that need not be read again; the others are.
    """
    files = dict(known)
    for name, path in _files_in(folder):
        if name not in files:
            files[name] = FileState.of(path)
    Manifest(
        problem,
        options,
        origin,
        _versions(),
        {name: np.dtype(dtype).str for name, dtype in columns.items()},
        splits,
        files[vocabulary].sha256 if vocabulary else "",
        dict(sorted(files.items())),
        overlaps=overlaps,
    ).write(folder)


def _files_in(folder: Path) -> Iterable[tuple[str, Path]]:
    """Gives the files that a manifest names, with their paths in the folder."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in (publish.PLAN_FILE, manifest.FILE_NAME):
            yield name, path


def report_overlaps(name: str, stored: Mapping[str, Split]) -> dict[str, dict[str, int]]:
    """Counts the examples that stand in two splits, and warns of them; see `overlap.overlaps`.

    Args:
        name: of the problem.
        stored: the columns of each split, in one or several parts.
    """
    found = overlap.overlaps(stored)
    for split, counts in found.items():
        total = sum(len(next(iter(part.values()))) for part in stored[split])
        for other, count in counts.items():
            logging.warning(
                "%s: %d of the %d examples of %s stand in %s too: how well they are done says "
                "little about others",
                name,
                count,
                total,
                split,
                other,
            )
    return found


def _bad_samples(folder: Path) -> list[str]:
    """Returns the bad samples that the shards name."""
    names = sorted(finished_names(folder))
    return [which for name in names for which in read_checks(folder, name).bad]


def _report_skipped(
    problem: Problem, sizes: Mapping[str, SplitSizes], bad_samples: Sequence[str]
) -> None:
    for which in bad_samples[:_NAMED]:
        logging.warning("left out as it cannot be used: %s", which)
    for split, made in sizes.items():
        for reason, number in made.skipped.items():
            logging.warning("%s, %s: %d samples skipped: %s", problem.name, split, number, reason)
        if not made.examples:
            raise ValueError(
                f"all samples of {split} of {problem.name} were skipped: {made.skipped}"
            )


def _plan(problem: Problem, settings: GenerationSettings, beside: bool) -> str:
    """Says in words all that the data depend on, but for the samples themselves.

    These are compared one by one where an interrupted run is gone on with.

    Args:
        problem: whose data.
        settings: how they are made.
        beside: see `_code_digest`.
    """
    fields = [problem.name, problem.made_with(), settings.num_shards, _versions(), problem.plan()]
    return json.dumps([*fields, _code_digest(type(problem), beside)])


def _code_digest(kind: type, beside: bool) -> str:
    """Returns what changes with the code of a problem: its modules.

    Args:
        kind: of the problem.
        beside: whether a user's modules beside them, which they may import, count too.
    """
    files = set()
    for each in kind.__mro__:
        package = each.__module__.partition(".")[0]
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if file is not None and package not in sys.stdlib_module_names:  # as abc is
            is_ours = package == "t2tp"
            is_alone = is_ours or not beside
            files |= {Path(file)} if is_alone else {*Path(file).parent.glob("*.py")}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # an extra that is not installed made nothing
            continue
    return versions
