"""Prepares a problem's data: a directory with the vocabulary, the shards and, last, a manifest.

`build` creates a temporary directory, and renames it when it is complete. An attempt (`_attempt`)
fills the directory (`_fill`) with shards (`_make_shards`) or, for a mixture, with the directories
of its problems (`_fill_parts`). Then it writes the manifest (`_write_manifest`). `preparable.py`
lists the methods of the problem that these functions call.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from t2tp.problems.data import atomic_directory, manifest
from t2tp.problems.data.manifest import Dtype, FileState, Manifest, SplitSizes
from t2tp.problems.data.shards import finished_names, read_checks
from t2tp.problems.prepare.open_samples import OpenSamples, remove_spooled
from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings, beam_for_downloads
from t2tp.problems.prepare.shard_generation import ChangedSourcesError, make_shards
from t2tp.typed_files import convert

# Max number of bad samples that warnings name.
_NAMED = 10


class _DirectoryContents(NamedTuple):
    """The contents of a directory, for its manifest.

    Attributes:
      vocabulary: name of the vocabulary's file; "" without a vocabulary.
      provenance: see `Manifest.origin`.
      files: files whose state is known; other files are read to compute the digest.
    """

    vocabulary: str
    provenance: dict[str, Any]
    columns: Mapping[str, np.dtype]
    splits: dict[str, SplitSizes]
    files: Mapping[str, FileState]


def build(
    problem: Preparable,
    directory: Path,
    tmp_dir: str | PathLike[str] | None,
    overwrite: bool,
    settings: GenerationSettings,
) -> Manifest | None:
    """Generates a problem's data atomically.

    `tmp_dir` and `overwrite` are as for `Problem.prepare`.

    Returns:
      The manifest of the directory; None if another process has generated the data meanwhile.

    Raises:
      ValueError, OSError: see `Problem.prepare`.
      ModuleNotFoundError: Apache Beam is required and not installed.
    """
    if settings.beam is not None:
        settings.beam.check()
    problem.data_dependencies()  # raises early if the options are wrong
    with atomic_directory.exclusive_build(directory):
        if directory.exists() and not overwrite:
            return None
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
    return Manifest.read(directory)


def _has_shards(partial: Path) -> bool:
    return any(finished_names(directory) for directory in (partial, *partial.iterdir()))


def _attempt(
    problem: Preparable,
    partial: Path,
    tmp_dir: str | PathLike[str] | None,
    settings: GenerationSettings,
) -> None:
    """Completes the directory, from where earlier attempts stopped, and writes its manifest."""
    remove_spooled(partial)
    with atomic_directory.scratch_directory(partial, tmp_dir) as scratch:
        contents = _fill(problem, partial, OpenSamples(problem, partial, scratch, settings))
    _write_manifest(problem, partial, contents)


def _fill(problem: Preparable, directory: Path, samples: OpenSamples) -> _DirectoryContents:
    """Writes everything except the manifest into a directory."""
    manifest.write_options(directory, problem.generation_options())
    with beam_for_downloads(samples.settings.beam):
        problem.download(directory, samples.scratch)
    parts = problem.parts_in(directory)
    if not parts:
        _ = samples.counts  # An empty split raises now, before a vocabulary is trained.
    vocabulary = problem.make_vocabulary(directory, samples)
    if parts:
        return _fill_parts(problem, directory, parts, vocabulary, samples)
    return _make_shards(problem, directory, vocabulary, samples)


def _make_shards(
    problem: Preparable, directory: Path, vocabulary: str, samples: OpenSamples
) -> _DirectoryContents:
    """Encodes the samples of all splits."""
    sizes, files = make_shards(
        problem, directory, samples.scratch, samples.counts, samples.settings
    )
    remove_spooled(directory)
    _report_skipped(problem, sizes, _bad_samples(directory))
    columns = problem.columns(directory)
    provenance = problem.provenance(directory, samples.scratch)
    return _DirectoryContents(vocabulary, provenance, columns, sizes, files)


def _fill_parts(
    problem: Preparable,
    directory: Path,
    parts: Mapping[Path, Preparable],
    vocabulary: str,
    samples: OpenSamples,
) -> _DirectoryContents:
    """Generates the data of each problem of a mixture, with the common vocabulary."""
    contents = []
    for part_dir, part in parts.items():
        contents.append(_fill(part, part_dir, samples.inside(part, part_dir)))
        _write_manifest(part, part_dir, contents[-1])
    splits = {split: [each.splits[split] for each in contents] for split in problem.splits}
    return _DirectoryContents(
        vocabulary,
        problem.provenance(directory, samples.scratch),
        contents[0].columns,
        {split: sum(rest, first) for split, (first, *rest) in splits.items()},
        files={},
    )


def _write_manifest(problem: Preparable, directory: Path, contents: _DirectoryContents) -> None:
    """Writes the manifest of a directory that is otherwise complete."""
    files = dict(contents.files)
    for name, path in _files_in(directory):
        if name not in files:
            files[name] = FileState.from_file(path)
    Manifest(
        problem.name,
        problem.generation_options(),
        contents.provenance,
        versions(),
        convert(
            {name: np.dtype(dtype).str for name, dtype in contents.columns.items()},
            dict[str, Dtype],
            problem.name,
            "columns",
        ),
        contents.splits,
        files[contents.vocabulary].sha256 if contents.vocabulary else "",
        dict(sorted(files.items())),
    ).write(directory)


def _files_in(directory: Path) -> Iterable[tuple[str, Path]]:
    """Yields the names of the files that a manifest lists, with their paths."""
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in (atomic_directory.PLAN_FILE, manifest.FILE_NAME):
            yield name, path


def _bad_samples(directory: Path) -> list[str]:
    """Returns descriptions of the first bad samples of each shard."""
    names = sorted(finished_names(directory))
    return [which for name in names for which in read_checks(directory, name).bad]


def _report_skipped(
    problem: Preparable, sizes: Mapping[str, SplitSizes], bad_samples: Sequence[str]
) -> None:
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
