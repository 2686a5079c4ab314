"""Makes a problem's data in a folder: downloads, vocabulary, shards, and at last the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from t2tp.problems import manifest, overlap, publish
from t2tp.problems.columns import open_columns
from t2tp.problems.generation import ShuffledSamples, make_shards
from t2tp.problems.manifest import FileState, Manifest, SplitSizes
from t2tp.problems.overlap import Split

if TYPE_CHECKING:
    from t2tp.problems.problem import Problem

# What the files depend on, beside our own code.
_PACKAGES = ("t2tp", "numpy", "sentencepiece", "tensorflow-datasets")


def make(
    problem: Problem,
    folder: Path,
    tmp_dir: str | PathLike[str] | None,
    num_shards: int | None,
    num_workers: int,
) -> None:
    """Makes what `folder` does not have yet, under `publish.only_one_maker`; it appears at the end.

    The arguments are those of `Problem.prepare`, which calls this.
    """
    logging.info("making the data of %s in %s", problem.name, folder)
    with publish.new_folder(folder, _plan(problem, num_shards)) as partial:
        with publish.scratch_folder(partial, tmp_dir) as scratch:
            manifest.write_options(partial, problem.made_with())
            description = problem.make(partial, scratch, num_shards, num_workers)
        describe(partial, **description)


def fill(
    problem: Problem, folder: Path, scratch: Path, num_shards: int | None, num_workers: int
) -> dict[str, Any]:
    """Puts vocabulary and shards into a folder; see `Problem.make`.

    Raises:
        ValueError: a split has no samples, or all were skipped.
    """
    problem.download(folder, scratch)
    samples = {
        split: ShuffledSamples(problem.samples(split, folder, scratch)) for split in problem.splits
    }
    for split, found in samples.items():
        if not len(found):
            raise ValueError(f"{problem.name} has no samples for its split {split}")
    vocabulary = problem.make_vocabulary(folder, samples.__getitem__)
    counts = {split: len(found) for split, found in samples.items()}
    sizes, files = make_shards(problem, folder, scratch, counts, num_shards, num_workers)
    _report_skipped(problem, sizes)
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


def _report_skipped(problem: Problem, sizes: Mapping[str, SplitSizes]) -> None:
    for split, made in sizes.items():
        for reason, number in made.skipped.items():
            logging.warning("%s, %s: %d samples skipped: %s", problem.name, split, number, reason)
        if not made.examples:
            raise ValueError(
                f"all samples of {split} of {problem.name} were skipped: {made.skipped}"
            )


def _plan(problem: Problem, num_shards: int | None) -> str:
    """Says in words all that the data depend on."""
    fields = [problem.name, problem.made_with(), num_shards, _versions(), problem.plan()]
    return json.dumps(fields)


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # an extra that is not installed made nothing
            continue
    return versions
