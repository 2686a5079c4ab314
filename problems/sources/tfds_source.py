"""Samples from TensorFlow Datasets: a dataset of the catalog, or a problem's own builder."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from t2tp.problems.data.sample import GeneratedSamples, Sample, Samples, SkippedSampleError
from t2tp.problems.prepare.settings import BeamSettings
from t2tp.quiet import errors_only, quiet_import

if TYPE_CHECKING:  # importing it takes seconds, and only the generation of data needs it
    import tensorflow_datasets as tfds

_RETRIES = 4


def import_tfds() -> Any:
    """Imports TFDS, and TensorFlow with it, without TensorFlow's startup messages."""
    with quiet_import():
        import tensorflow_datasets
    return tensorflow_datasets


class TfdsSource:
    """The samples of a dataset: a mixin that must come before the family's class among the bases.

    Downloads are in `tmp_dir/downloads`, and manual downloads in its subdirectory `manual`. The
    datasets are in `tmp_dir/tfds`, where problems on the same dataset share it.

    Attributes:
      dataset: name in TFDS's catalog, for instance "wmt14_translate/de-en".
      dataset_splits: the problem's split -> the dataset's split, or a part of it, such as
        "train[:95%]".
      sample_features: name in a sample -> the dataset's feature. If empty, the samples are the
        dataset's examples.
    """

    dataset: str
    splits: tuple[str, ...]
    beam: BeamSettings | None = None
    dataset_splits: ClassVar[Mapping[str, str]] = {
        "train": "train",
        "validation": "validation",
        "test": "test",
    }
    sample_features: Mapping[str, str] = {}

    def dataset_builder(self, directory: Path, tmp_dir: Path) -> tfds.core.DatasetBuilder:
        """Returns the builder of the dataset.

        The dataset's files need random access, as in ArrayRecord. TFDS's default, TFRecord, can
        only be read sequentially. If files of the builder belong to the problem's data, the builder
        must write them into `directory`: `tmp_dir` may be deleted.
        """
        tfds = import_tfds()
        return tfds.builder(self.dataset, data_dir=tmp_dir / "tfds", file_format="array_record")

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Converts an example of the dataset to a sample of the family; texts are str.

        By default returns the `sample_features`. An example with a text that is not UTF-8 is
        skipped and counted.
        """
        named = self.sample_features
        return {name: example[named[name]] for name in named} if named else example

    def dataset_split(self, split: str, info: tfds.core.DatasetInfo) -> str:
        """Returns the dataset's split, or a part of it, for a split of the problem.

        `info` describes the prepared dataset.
        """
        return self.dataset_splits[split]

    def download(self, directory: Path, tmp_dir: Path) -> None:
        """Downloads and prepares the dataset; see `Problem.download`."""
        tfds = import_tfds()
        tfds.disable_progress_bar()  # unlike ProgressBar, it would fill logs too
        with quiet_import(), errors_only():  # TFDS imports TensorFlow when it first makes a builder
            import tensorflow  # noqa: F401

            builder = self.dataset_builder(directory, tmp_dir)
        # TFDS prints the size of the download, which is useless if a builder downloads nothing.
        has_size = bool(builder.info.download_size)
        shown = nullcontext() if has_size else redirect_stdout(io.StringIO())
        with _one_sentence(builder.name, tmp_dir), _few_retries(), shown:
            builder.download_and_prepare(
                download_dir=tmp_dir / "downloads", download_config=_download_config(self.beam)
            )
        for leftover in Path(builder.data_dir).parent.glob("*incomplete*"):  # left by a killed run
            shutil.rmtree(leftover)

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Opens the dataset's examples; see `Problem.samples`."""
        with errors_only():  # TFDS logs lines each time a dataset is opened, in every worker.
            builder = self.dataset_builder(directory, tmp_dir)
        named = self.dataset_split(split, builder.info)
        splits = builder.info.splits
        if not splits[named].num_examples:
            sizes = {name: each.num_examples for name, each in splits.items()}
            raise ValueError(
                f"{split}={named} has no example: of the dataset {self.dataset} there are "
                + ", ".join(f"{size:,} in {name}" for name, size in sizes.items())
            )
        source = builder.as_data_source(named)
        return GeneratedSamples(len(source), lambda number: self.sample(_Example(source[number])))

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the dataset and its splits."""
        with errors_only():
            info = self.dataset_builder(directory, tmp_dir).info
        splits = {split: self.dataset_split(split, info) for split in self.splits}
        return {"dataset": info.full_name, "splits": splits}


def _download_config(beam: BeamSettings | None) -> tfds.download.DownloadConfig:
    """Returns TFDS's settings for preparing a dataset, including Beam's."""
    tfds = import_tfds()
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    if beam is None:
        return config
    from apache_beam.options.pipeline_options import PipelineOptions

    return config.replace(beam_runner=beam.runner, beam_options=PipelineOptions(beam.options))


@contextmanager
def _few_retries() -> Iterator[None]:
    """Reduces TFDS's retries, which would take minutes without a network."""
    from tensorflow_datasets.core.download import downloader

    before = downloader.MAX_RETRIES
    downloader.MAX_RETRIES = _RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = before


@contextmanager
def _one_sentence(dataset: str, tmp_dir: Path) -> Iterator[None]:
    """Converts TFDS's errors in preparing a dataset to one-sentence errors."""
    import requests
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # The errors for archives that are missing, truncated or damaged.
    damaged = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, tf.errors.OpError)
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"TFDS needs the package {error.name} to make the dataset {dataset}: "
            f"pip install {error.name}"
        ) from error
    except (*damaged, AssertionError) as error:  # AssertionError: no manual download
        raise ValueError(
            f"TFDS cannot make the dataset {dataset} from the downloads in {tmp_dir}: {error}"
        ) from error
    except (tfds.download.DownloadError, requests.exceptions.RequestException) as error:
        raise OSError(
            f"TFDS cannot download the dataset {dataset}: {error}; finished downloads are kept"
            f" in {tmp_dir}: run the same command again to continue"
        ) from error
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise
        # TFDS's writer raised it; the message has the cause and the file.
        raise OSError(f"TFDS cannot write the dataset {dataset}: {error}") from error
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(  # a full disk: its error does not name the file
            error.errno, f"TFDS cannot make the dataset {dataset}: {error.strerror}", str(tmp_dir)
        ) from error


class _Example(Mapping[str, Any]):
    """An example that decodes a feature when it is read; unread features need not be UTF-8."""

    def __init__(self, example: Mapping[str, Any]):
        self._example = example

    def __getitem__(self, name: str) -> Any:
        value: Any = self._example
        if name in value:
            return as_text(value[name])
        for step in name.split("/"):  # a nested feature
            value = value[step]
        return as_text(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._example)

    def __len__(self) -> int:
        return len(self._example)


def as_text(value: Any) -> Any:
    """Decodes the bytes in a feature of an example to str, at any depth.

    Raises:
      SkippedSampleError: the bytes are not UTF-8.
    """
    if isinstance(value, Mapping):
        return {name: as_text(each) for name, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [as_text(each) for each in value.tolist()]
    if isinstance(value, list):
        return [as_text(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SkippedSampleError("not UTF-8") from error
    return value
