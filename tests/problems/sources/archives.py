"""Small archives in the formats of TFDS's datasets, and a mock of their download."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import struct
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


def idx(array):
    """Encodes an array in the file format of MNIST, compressed."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


# Number of digits, of which 5,000 are held out.
DIGITS, TEST_DIGITS = 1150, 100


def mnist_archives(url):
    count = DIGITS if "train" in url else TEST_DIGITS
    random = np.random.default_rng(count)
    if "images" in url:
        return idx(random.integers(0, 256, (count, 28, 28)).astype(np.uint8))
    return idx((np.arange(count) % 10).astype(np.uint8))


def cifar_archive(url):
    files = {}
    random = np.random.default_rng(0)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        files[name] = random.integers(0, 10, (30, 3073)).astype(np.uint8).tobytes()
    labels = "airplane automobile bird cat deer dog frog horse ship truck"
    files["batches.meta.txt"] = "\n".join(labels.split()).encode()
    return tar(files, "cifar-10-batches-bin")


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


def lm1b_archive(url):
    directory = "training-monolingual.tokenized.shuffled"
    files = {f"{directory}/news.en-0000{i}-of-00100": lines(i) for i in (1, 2)}
    held_out = "heldout-monolingual.tokenized.shuffled"
    return tar(
        {**files, f"{held_out}/news.en.heldout-00000-of-00050": lines(3)},
        "1-billion-word-language-modeling-benchmark-r13output",
    )


def lines(seed):
    return "\n".join(english(seed, number) for number in range(50)).encode()


def tar(files, directory="."):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, contents in files.items():
            entry = tarfile.TarInfo(name if directory == "." else f"{directory}/{name}")
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
    return packed.getvalue()


def wmt_archive(url):
    """Makes an archive in which English "the word" is German "das word"; texts name their part."""
    if "dev.tgz" in url:
        files = pair("dev/newstest2013", "newstest2013")
        for side, language in (("src", "de"), ("ref", "en")):
            sentences = sides("newstest2014")[language]
            lines = [f'<seg id="{n}">{text}</seg>' for n, text in enumerate(sentences, 1)]
            files[f"dev/newstest2014-deen-{side}.{language}.sgm"] = "\n".join(lines).encode()
    elif "europarl" in url:
        files = pair("training/europarl-v7.de-en", "europarl")
    elif "commoncrawl" in url:
        files = pair("commoncrawl.de-en", "commoncrawl")
    else:
        files = pair("training/news-commentary-v9.de-en", "news commentary")
    return tar(files)


def sides(name):
    return {
        "en": [f"{name}: the {english(len(name), n)} \N{EURO SIGN}" for n in range(30)],
        "de": [f"{name}: das {english(len(name), n)} \N{EURO SIGN}" for n in range(30)],
    }


def pair(path, name):
    return {f"{path}.{end}": "\n".join(texts).encode() for end, texts in sides(name).items()}


STORIES = [
    (publisher, f"http://{publisher}/{split}/{n}", split)
    for publisher in ("cnn", "dailymail")
    for split, count in (("train", 20), ("val", 5), ("test", 5))
    for n in range(count)
]


def cnn_archive(url):
    """Makes stories named by the hash of their address, and address lists of each split."""
    if url.endswith(".txt"):
        split = url.removesuffix(".txt").rpartition("_")[2]
        return "".join(f"{address}\n" for _, address, its in STORIES if its == split).encode()
    wanted = {"cKcjQ": "cnn", "aY2bWs": "dailymail"}
    publisher = next(name for end, name in wanted.items() if url.endswith(end[1:]))
    files = {
        f"{hashlib.sha1(address.encode()).hexdigest()}.story": (
            f"Story {address} begins\n\nand {english(1, n)}.\n\n"
            f"@highlight\n\nFirst of {address}\n\n@highlight\n\nSecond {english(2, n)}.\n"
        ).encode()
        for n, (its, address, _) in enumerate(STORIES)
        if its == publisher
    }
    return tar(files, f"{publisher}/stories")


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
