from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tensorflow_datasets as tfds

import t2tp.problems  # noqa: F401  (registers the problems)
from t2tp import registry
from t2tp.problems.python_stdlib_builder import read_sources, split_of
from tests.problems.conftest import AWKWARD, SMALL, TinyStdlib

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def test_it_is_registered():
    problem = registry.problem("languagemodel_python_stdlib")()
    assert problem.name == "languagemodel_python_stdlib"
    assert (problem.source_dir() / "os.py").is_file()


def test_importing_the_problems_does_not_import_what_is_slow():
    program = (
        "import sys, t2tp.problems;"
        "print({'tensorflow', 'tensorflow_datasets', 'sentencepiece'} & set(sys.modules))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "set()\n"


def test_sources_are_the_utf8_files_in_the_order_of_their_paths(sources):
    found = read_sources(sources)
    assert list(found.texts) == sorted(found.texts)
    ours = {name: text.encode() for name, text in found.texts.items() if "/" in name}
    assert ours == AWKWARD | SMALL  # unchanged, and without files that are not documents
    assert (found.not_utf8, found.empty) == (1, 1)


def test_what_was_skipped_is_reported(problem, data_dir):
    origin = problem.check_prepared(data_dir).origin
    assert (origin["skipped_not_utf8"], origin["skipped_empty"]) == (1, 1)
    assert origin["python"].startswith(sys.implementation.name)


def test_the_split_of_a_file_never_changes():
    assert split_of("small/module_0.py") == "train"
    assert split_of("small/module_3.py") == "validation"
    assert split_of("small/module_37.py") == "test"
    splits = [split_of(f"package/module_{i}.py") for i in range(10_000)]
    for split, percent in {"train": 94, "validation": 3, "test": 3}.items():
        assert splits.count(split) == pytest.approx(100 * percent, abs=100)


def test_the_dataset_is_one_of_tfds_with_random_access(problem, data_dir, sources):
    directory = next(problem.directory(data_dir).glob("dataset/python_stdlib/*/1.0.0"))
    builder = tfds.builder_from_directory(directory)
    train = builder.as_data_source("train")
    assert len(train) == problem.check_prepared(data_dir).splits["train"].examples
    for i in (len(train) - 1, 0):
        path = train[i]["path"].decode()
        assert train[i]["text"] == (sources / path).read_bytes()
        assert split_of(path) == "train"


SECOND_RUN = """
import pathlib, sys
from tests.problems.conftest import TinyStdlib
TinyStdlib(pathlib.Path(sys.argv[1])).prepare(sys.argv[2])
"""


@pytest.mark.slow
def test_the_same_python_gives_the_same_bytes(problem, data_dir, sources, tmp_path):
    environment = os.environ | {"PYTHONHASHSEED": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SECOND_RUN, str(sources), str(tmp_path)],
        check=True,
        capture_output=True,
        cwd=REPOSITORY,
        env=environment,
    )
    assert not done.stdout  # TFDS does not speak of a download.
    first, second = (problem.directory(directory) for directory in (data_dir, tmp_path))
    names = {path.name for path in first.iterdir() if path.is_file()}
    assert "train-00000-of-00001.targets" in names and "vocabulary.model" in names
    for name in names - {"manifest.json"}:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no .py files in "),
        (["notes.txt"], "no .py files in "),
        (["os.py"], "no file for the validation split among the 1 .py files"),
    ],
)
def test_too_few_files_are_said_and_leave_nothing(tmp_path, files, message):
    sources, data_dir = tmp_path / "sources", tmp_path / "data"
    sources.mkdir()
    for name in files:
        (sources / name).write_text("x = 1\n")
    with pytest.raises(ValueError, match=message):
        TinyStdlib(sources).prepare(data_dir)
    assert [path.name for path in data_dir.iterdir()] == [".tiny_stdlib.lock"]
