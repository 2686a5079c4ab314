"""Problems on TFDS's catalog, made by TFDS's own code from small archives."""

import contextlib

import pytest
from tensorflow_datasets.core.writer import Writer

from t2tp import problems
from tests.files import files_of_at_most
from tests.problems.sources.archives import imdb_archive, served, write_imagenet


@pytest.fixture
def network(tmp_path):
    """Serves TFDS's downloads from small archives."""
    with contextlib.ExitStack() as stack:
        yield lambda archive: stack.enter_context(served(archive, tmp_path / "served"))


@pytest.mark.slow
def test_reviews_from_an_archive(network, tmp_path):
    network(imdb_archive)
    problem = problems.find("sentiment_imdb", "vocab_size=400")
    manifest = problem.prepare(tmp_path / "data", num_shards=2, num_workers=2)
    assert [sizes.examples for sizes in manifest.splits.values()] == [72, 8, 80]
    for number in range(72):
        sample = problem.decode_example(tmp_path / "data", "train", number)
        name = problem.class_names[sample["label"]]
        assert sample["inputs"].startswith(f"{name} review\twith a tab, ")
        assert sample["inputs"].endswith("<br />é")
    assert not list(problem.directory(tmp_path / "data").glob("scratch"))


def test_a_split_without_examples_is_said(network, tmp_path):
    network(imdb_archive)
    problem = problems.find("tfds:imdb_reviews", "validation=test[:0%],vocab_size=400")
    with pytest.raises(ValueError, match=r"validation=test\[:0%\] has no example: .* 80 in test"):
        problem.prepare(tmp_path / "data")


def test_a_text_of_the_catalog_that_is_not_utf8_is_skipped_and_counted(network, tmp_path, caplog):
    network(lambda url: imdb_archive(url, damaged="train/neg/3_7.txt"))
    problem = problems.find("sentiment_imdb", "vocab_size=400")
    splits = problem.prepare(tmp_path / "data").splits
    skipped = sum(sizes.skipped.get("not UTF-8", 0) for sizes in splits.values())
    assert skipped == 1
    assert sum(sizes.examples for sizes in splits.values()) == 159
    assert "1 samples skipped: not UTF-8" in caplog.text


def test_a_disk_that_is_full_while_the_dataset_is_written(network, tmp_path, monkeypatch):
    network(imdb_archive)
    problem = problems.find("sentiment_imdb", "vocab_size=400")
    finalize = Writer.finalize

    def on_a_small_disk(writer):
        with files_of_at_most(2000):
            return finalize(writer)

    with monkeypatch.context() as changed:
        changed.setattr(Writer, "finalize", on_a_small_disk)
        with pytest.raises(OSError, match="cannot write the dataset imdb_.*File too large.*record"):
            problem.prepare(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        problem.check_prepared(tmp_path / "data")
    assert problem.prepare(tmp_path / "data").splits["train"].examples == 72


@pytest.mark.parametrize("size", [None, 3000])
def test_archives_that_are_missing_or_cut_short_are_said(tmp_path, size):
    manual = tmp_path / "tmp" / "downloads" / "manual"
    with pytest.raises(ValueError, match=r"dataset imagenet2012 from (.|\n)*manual"):
        problems.find("image_imagenet32").prepare(tmp_path / "data", tmp_dir=tmp_path / "tmp")
    write_imagenet(manual)
    damaged = manual / ("ILSVRC2012_img_train.tar" if size else "ILSVRC2012_img_val.tar")
    contents = damaged.read_bytes()[:size]
    damaged.unlink()
    if size:
        damaged.write_bytes(contents)
    wanted = "unexpected end of data" if size else "ILSVRC2012_img_val.tar; No such file"
    with pytest.raises(ValueError, match=f"cannot make the dataset imagenet2012 from .*{wanted}"):
        problems.find("image_imagenet32").prepare(tmp_path / "data", tmp_dir=tmp_path / "tmp")
