"""Small archives in the formats of TFDS's datasets, and a mock of their download."""

import contextlib
import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow_datasets as tfds

from tests.problems.mocked_datasets import english


@contextlib.contextmanager
def served(archive: Callable[[str], bytes], directory: Path) -> Iterator[None]:
    """Redirects TFDS's downloads to the results of `archive`, stored in `directory`."""

    def one(url: Any) -> Path:
        url = getattr(url, "url", url)
        # TFDS names a file without a suffix by the server's headers.
        name = url.rsplit("/", 1)[-1]
        name = f"{name.rpartition('=')[2]}.tgz" if "=" in name else name
        path = directory / name
        directory.mkdir(exist_ok=True)
        path.write_bytes(archive(url))
        return path

    def mapped(do: Callable[[Any], Any], urls: Any) -> Any:
        if isinstance(urls, dict):
            return {name: mapped(do, url) for name, url in urls.items()}
        if isinstance(urls, list | tuple):
            return [mapped(do, url) for url in urls]
        return do(urls)

    def download(self: Any, urls: Any) -> Any:
        return mapped(one, urls)

    def download_and_extract(self: Any, urls: Any) -> Any:
        def extracted(url: Any) -> Any:
            path = one(url)
            packed = tarfile.is_tarfile(path) or zipfile.is_zipfile(path)
            return self.extract(path) if packed or path.suffix == ".gz" else path

        return mapped(extracted, urls)

    manager = tfds.download.DownloadManager
    with (
        mock.patch.object(manager, "download", download),
        mock.patch.object(manager, "download_and_extract", download_and_extract),
    ):
        yield


def imdb_archive(url, damaged=""):
    files = {}
    for split in ("train", "test"):
        for label in ("neg", "pos", "unsup"):
            if (split, label) != ("test", "unsup"):
                for i in range(40):
                    text = f"{label} review\twith a tab, {english(i, 0)}<br />é"
                    files[f"{split}/{label}/{i}_7.txt"] = text.encode()
    if damaged:
        files[damaged] = b"neg review caf\xe9"
    return tar(files, "aclImdb")


def tar(files, directory="."):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, contents in files.items():
            entry = tarfile.TarInfo(name if directory == "." else f"{directory}/{name}")
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
    return packed.getvalue()


def write_imagenet(directory):
    """Writes the archives of a manual download: 12 images for training, 4 for validation."""
    from PIL import Image

    def jpeg(shade, height=48, width=64):
        file = io.BytesIO()
        Image.fromarray(np.full((height, width, 3), shade, np.uint8)).save(file, "jpeg")
        return file.getvalue()

    directory.mkdir(parents=True)
    classes = {
        f"{name}.tar": plain_tar({f"{name}_{n}.JPEG": jpeg(20 * number + n) for n in range(4)})
        for number, name in enumerate(("n01440764", "n01443537", "n15075141"))
    }
    (directory / "ILSVRC2012_img_train.tar").write_bytes(plain_tar(classes))
    held_out = {f"ILSVRC2012_val_{n:08}.JPEG": jpeg(200, 30, 90) for n in range(1, 5)}
    (directory / "ILSVRC2012_img_val.tar").write_bytes(plain_tar(held_out))


def plain_tar(files):
    return gzip.decompress(tar(files))
