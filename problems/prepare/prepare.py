"""Prepares a problem's data: a directory with the vocabulary, the shards and, last, a manifest.

`build` creates a temporary directory, and renames it when it is complete. An attempt (`_attempt`)
fills the directory (`_fill`) with shards or, for a mixture, with the directories of its problems.
Then it writes the manifest. `preparable.py` lists the methods of the problem that these functions
call.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path

import numpy as np
from absl import logging

from t2tp.problems.data import atomic_directory, manifest
from t2tp.problems.data.manifest import Dtype, FileState, Manifest, SplitSizes
from t2tp.problems.data.shards import finished_names, read_checks
from t2tp.problems.prepare.open_samples import OpenSamples, remove_spooled
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings
from t2tp.problems.prepare.shard_generation import ChangedSourcesError, make_shards
from t2tp.typed_files import convert

# Max number of bad samples that warnings name.
_NAMED = 10


def build(
    problem: Preparable,
    directory: Path,
    tmp_dir: str | PathLike[str] | None,
    overwrite: bool,
    settings: GenerationSettings,
) -> None:
    """Generates a problem's data atomically.

    `tmp_dir` and `overwrite` are as for `Problem.prepare`.

    Raises:
      ValueError, OSError: see `Problem.prepare`.
      ModuleNotFoundError: Apache Beam is required and not installed.
    """
    if settings.beam is not None:
        settings.beam.check()
    problem.data_dependencies()  # raises early if the options are wrong
    with atomic_directory.exclusive_build(directory):
        if directory.exists() and not overwrite:  # Another process has generated the data.
            return
        logging.info("making the data of %s in %s", problem.name, directory)
        plan = plan_of(problem, settings, with_neighbours=True)
        # The comparison at the end leaves out other modules of the user's directory, for example a
        # model, because users may edit them while the data are made.
        while_made = plan_of(problem, settings, with_neighbours=False)
        with atomic_directory.atomic_directory(directory, plan, _has_shards) as partial:
            try:
                _attempt(problem, partial, tmp_dir, settings)
            except ChangedSourcesError as changed:
                logging.warning("%s: the data are made again from them", changed)
                atomic_directory.clear(partial)
                _attempt(problem, partial, tmp_dir, settings)
            if while_made != plan_of(problem, settings, with_neighbours=False):
                atomic_directory.clear(partial)
                raise ValueError(
                    f"the sources of {problem.name} changed while they were read: run again"
                )


def _has_shards(partial: Path) -> bool:
    return any(finished_names(directory) for directory in (partial, *partial.iterdir()))


def _attempt(
    problem: Preparable,
    partial: Path,
    tmp_dir: str | PathLike[str] | None,
    settings: GenerationSettings,
) -> None:
    """Completes the directory, from where earlier attempts stopped."""
    remove_spooled(partial)
    with atomic_directory.scratch_directory(partial, tmp_dir) as scratch:
        _fill(OpenSamples(problem, partial, scratch, settings))


def _fill(samples: OpenSamples) -> Manifest:
    """Writes the directory of a problem or a mixture, its manifest last."""
    problem, directory = samples.problem, samples.directory
    manifest.write_options(directory, problem.generation_options())
    problem.beam = samples.settings.beam
    problem.download(directory, samples.scratch)
    parts = problem.parts_in(directory)
    if not parts:
        _ = samples.counts  # An empty split raises now, before a vocabulary is trained.
    vocabulary = problem.make_vocabulary(directory, samples)
    files: dict[str, FileState] = {}
    if parts:
        first, *rest = [_fill(samples.inside(part, part_dir)) for part_dir, part in parts.items()]
        columns = first.columns
        sizes = {
            split: sum((each.splits[split] for each in rest), first.splits[split])
            for split in problem.splits
        }
    else:
        sizes, files = make_shards(samples)
        remove_spooled(directory)
        _report_skipped(problem, sizes, directory)
        dtypes = {name: np.dtype(each).str for name, each in problem.columns(directory).items()}
        columns = convert(dtypes, dict[str, Dtype], problem.name, "columns")
    for name, path in _files_in(directory, samples.scratch):
        if name not in files:
            files[name] = FileState.from_file(path)
    made = Manifest(
        problem.name,
        problem.generation_options(),
        problem.provenance(directory, samples.scratch),
        versions(),
        columns,
        sizes,
        files[vocabulary].sha256 if vocabulary else "",
        dict(sorted(files.items())),
    )
    made.write(directory)
    return made


def _files_in(directory: Path, scratch: Path) -> Iterable[tuple[str, Path]]:
    """Yields the names of the files that a manifest lists, with their paths; no scratch files."""
    omitted = [directory / atomic_directory.PLAN_FILE, directory / manifest.FILE_NAME]
    if directory in scratch.parents:  # A user's --tmp_dir may also contain `directory`.
        omitted.append(scratch)
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not any(each in (path, *path.parents) for each in omitted):
            yield path.relative_to(directory).as_posix(), path


def _report_skipped(problem: Preparable, sizes: Mapping[str, SplitSizes], directory: Path) -> None:
    shards = sorted(finished_names(directory))
    bad_samples = [which for shard in shards for which in read_checks(directory, shard).bad]
    for message in bad_samples[:_NAMED]:
        logging.warning("left out as it cannot be used: %s", message)
    for split, split_sizes in sizes.items():
        for reason, number in split_sizes.skipped.items():
            logging.warning("%s, %s: %d samples skipped: %s", problem.name, split, number, reason)
        if not split_sizes.examples:
            raise ValueError(
                f"all samples of {split} of {problem.name} were skipped: {split_sizes.summary()}"
            )


# The plan of the data is all that determines them, except the samples. An interrupted attempt is
# resumed only if the plan has not changed.
# Packages that affect the files.
_PACKAGES = ("t2tp", "numpy", "sentencepiece", "tensorflow-datasets")


def plan_of(problem: Preparable, settings: GenerationSettings, with_neighbours: bool) -> str:
    """Returns, as JSON, everything that determines the data, except the samples."""
    fields = [
        problem.name,
        problem.generation_options(),
        settings.num_shards,
        versions(),
        problem.data_dependencies(),
    ]
    return json.dumps([*fields, code_digest(type(problem), with_neighbours)])


def versions() -> dict[str, str]:
    """Returns the versions of the packages that affect the data."""
    version_of = {}
    for package in _PACKAGES:
        try:
            version_of[package] = version(package)
        except PackageNotFoundError:  # an optional package that was not used
            continue
    return version_of


def code_digest(kind: type, with_neighbours: bool) -> str:
    """Returns a digest of the modules of a problem's class and base classes.

    `with_neighbours` includes all modules of a user's directory, because the problem's modules may
    import them.
    """
    files = set()
    for each in kind.__mro__:
        package = each.__module__.partition(".")[0]
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if file is not None and package not in sys.stdlib_module_names:  # skips for instance abc
            is_ours = package == "t2tp"
            is_alone = is_ours or not with_neighbours
            files |= {Path(file)} if is_alone else {*Path(file).parent.glob("*.py")}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
