"""Samples from TensorFlow Datasets: its catalog's datasets, or a problem's own builder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from absl import logging

from t2tp.problems.generation import Sample, Samples

if TYPE_CHECKING:  # importing it takes seconds, and only making data needs it
    import tensorflow_datasets as tfds


class FromTfds:
    """The samples of a problem that names a dataset; to be put before the problem's family.

    Downloads are in `tmp_dir/downloads` (what has to be downloaded by hand goes to `manual` there),
    and the datasets in `tmp_dir/tfds`, where problems on the same dataset share it.

    Attributes:
        dataset: name in TFDS's catalog, for instance "wmt14_translate/de-en".
        dataset_splits: the dataset's name for each of the problem's splits; it may be a part, as
            in "train[:95%]".
    """

    dataset: str
    splits: tuple[str, ...]
    dataset_splits: ClassVar[Mapping[str, str]] = {
        "train": "train",
        "validation": "validation",
        "test": "test",
    }

    def dataset_builder(self, folder: Path, tmp_dir: Path) -> tfds.core.DatasetBuilder:
        """Returns the builder of the dataset.

        Its files must have random access, which ArrayRecord has. TFDS's default, TFRecord, can
        only be read from the front.

        Args:
            folder: where the problem's data are being made; what is put there stays.
            tmp_dir: for what is not needed afterwards.
        """
        import tensorflow_datasets as tfds

        return tfds.builder(self.dataset, data_dir=tmp_dir / "tfds", file_format="array_record")

    def sample(self, example: Mapping[str, Any]) -> Sample:
        """Makes the family's sample of an example of the dataset, whose texts are str.

        By default it is the example itself.
        """
        return example

    def dataset_split(self, split: str, info: tfds.core.DatasetInfo) -> str:
        """Returns the dataset's name for a split. It has been made, so `info` knows its splits."""
        return self.dataset_splits[split]

    def download(self, folder: Path, tmp_dir: Path) -> None:
        """Makes the dataset; see `Problem.download`."""
        import tensorflow_datasets as tfds

        tfds.disable_progress_bar()  # its bars are drawn in logs too; ours are not
        builder = self.dataset_builder(folder, tmp_dir)
        try:
            builder.download_and_prepare(
                download_dir=tmp_dir / "downloads",
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )
        except ModuleNotFoundError as error:
            raise ValueError(
                f"TFDS needs the package {error.name} to make the dataset {builder.name}: "
                f"pip install {error.name}"
            ) from error
        except AssertionError as error:  # files that are to be downloaded by hand are not there
            raise ValueError(f"TFDS cannot make the dataset {builder.name}: {error}") from error
        except tfds.download.DownloadError as error:
            raise OSError(f"TFDS cannot download the dataset {builder.name}: {error}") from error
        for left in Path(builder.data_dir).parent.glob("*incomplete*"):  # by a killed run
            shutil.rmtree(left)

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """Opens the dataset's examples; see `Problem.samples`."""
        with _quiet():
            builder = self.dataset_builder(folder, tmp_dir)
        source = builder.as_data_source(self.dataset_split(split, builder.info))
        return _Mapped(source, self.sample)

    def origin(self, folder: Path, tmp_dir: Path) -> dict[str, Any]:
        """Says which dataset it was."""
        with _quiet():
            info = self.dataset_builder(folder, tmp_dir).info
        splits = {split: self.dataset_split(split, info) for split in self.splits}
        return {"dataset": info.full_name, "splits": splits}


@contextmanager
def _quiet() -> Iterator[None]:
    """TFDS logs lines about a dataset each time it is opened, in every worker."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class _Mapped:
    """The examples of a data source as samples."""

    def __init__(self, source: Sequence[Mapping[str, Any]], sample: Callable[[Any], Sample]):
        self._source = source
        self._sample = sample

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> Sample:
        return self._sample(as_text(self._source[number]))


def as_text(value: Any) -> Any:
    """Turns the bytes in an example into str, at any depth. What is not UTF-8 stays bytes."""
    if isinstance(value, Mapping):
        return {name: as_text(each) for name, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [as_text(each) for each in value.tolist()]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return value
