"""The TFDS dataset of the Python sources in a directory, by default of the standard library.

This module imports TFDS, which takes seconds: import it where a dataset is made.

The files are ArrayRecord, so that `as_data_source` has random access. Of TFDS's other formats,
TFRecord has no random access, and Parquet and Riegeli need additional packages.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tensorflow_datasets as tfds
from absl import logging

_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}

# Percentage of the files by split; the rest is train.
_PERCENT = {"validation": 3, "test": 3}


@dataclasses.dataclass(eq=False)
class SourcesConfig(tfds.core.BuilderConfig):
    """The configuration of the sources.

    Attributes:
      source_dir: the directory of the sources, searched recursively.
    """

    source_dir: Path = dataclasses.field(kw_only=True)


class LocalInfo(tfds.core.DatasetInfo):
    """Dataset info without the default download of statistics from TFDS's bucket."""

    def initialize_from_bucket(self) -> None:
        """Downloads nothing: the statistics are computed with the dataset."""


class PythonStdlib(tfds.core.GeneratorBasedBuilder):
    """A document for each `.py` file that is UTF-8 and not empty, in the order of the paths."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return LocalInfo(
            builder=self,
            description="The source files of Python's standard library.",
            features=tfds.features.FeaturesDict(
                {"path": tfds.features.Text(), "text": tfds.features.Text()}
            ),
            # The keys are paths, so examples are in the order of paths, not of TFDS's hashes.
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[str, dict[str, str]]]]:
        source_dir = self.builder_config.source_dir
        sources = read_sources(source_dir)
        self.info.metadata["skipped_not_utf8"] = sources.not_utf8
        self.info.metadata["skipped_empty"] = sources.empty
        paths: dict[str, list[str]] = {"train": [], **{split: [] for split in _PERCENT}}
        for path in sources.texts:
            paths[split_of(path)].append(path)
        for split in paths:
            if not paths[split]:
                raise ValueError(
                    f"no file for the {split} split among the {len(sources.texts)} .py files in "
                    f"{source_dir}: it takes some hundreds of files to fill all splits"
                )
        return {split: self._generate_examples(sources.texts, paths[split]) for split in paths}

    def _generate_examples(
        self, texts: dict[str, str], paths: list[str]
    ) -> Iterator[tuple[str, dict[str, str]]]:
        for path in paths:
            yield path, {"path": path, "text": texts[path]}


class Sources(NamedTuple):
    """The sources in a directory.

    Attributes:
      texts: by path relative to the directory with "/" as separator, sorted by path.
      not_utf8: number of files skipped because they are not UTF-8.
      empty: number of files skipped because they are empty.
    """

    texts: dict[str, str]
    not_utf8: int
    empty: int


def read_sources(source_dir: Path) -> Sources:
    """Reads the `.py` files in a directory, without installed packages.

    Raises:
      ValueError: there are none.
    """
    files = {
        path.relative_to(source_dir).as_posix(): path
        for path in source_dir.rglob("*.py")
        if path.is_file() and _NOT_OURS.isdisjoint(path.relative_to(source_dir).parts)
    }
    if not files:
        raise ValueError(f"no .py files in {source_dir}")
    texts, not_utf8, empty = {}, 0, 0
    for name in sorted(files):
        try:
            # Not read_text(): it would turn "\r\n" into "\n".
            text = files[name].read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            # Tests of the standard library itself need some files in other encodings.
            not_utf8 += 1
            continue
        if text:
            texts[name] = text
        else:
            empty += 1
    logging.info(
        "read %d files in %s; skipped %d that are not UTF-8 and %d that are empty",
        len(texts),
        source_dir,
        not_utf8,
        empty,
    )
    return Sources(texts, not_utf8, empty)


def split_of(path: str) -> str:
    """Returns the split of a file, which depends on its path only."""
    percentile = int.from_bytes(hashlib.sha256(path.encode("utf-8")).digest()[:8], "big") % 100
    for split, percent in _PERCENT.items():
        if percentile < percent:
            return split
        percentile -= percent
    return "train"
