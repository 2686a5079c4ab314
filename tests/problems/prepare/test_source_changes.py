"""User files that change after data were made from them."""

import json
import os

import pytest

from t2tp import problems
from t2tp.problems.sources.user_files import changed_sources


@pytest.fixture
def made(tmp_path):
    """Makes data from three text files; returns their directory and a check of the data."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b", "ab"):  # ab.txt never changes.
        (texts / f"{name}.txt").write_text("".join(f"{name} {n}\n" for n in range(60)))
    options = f"files={texts}/*.txt,documents=lines,vocab_size=280"
    problems.find("languagemodel_textfiles", options).prepare(tmp_path / "data")

    def check():
        return problems.find("languagemodel_textfiles").check_prepared(tmp_path / "data")

    return texts, check


def test_a_changed_a_new_and_a_missing_file_are_named_once(made, caplog, tmp_path):
    texts, check = made
    before = check().digest()
    (texts / "a.txt").write_text("other\n")
    (texts / "b.txt").unlink()
    for name in "cd":
        (texts / f"{name}.txt").write_text("new\n")
    problem = problems.find("languagemodel_textfiles")
    for _ in range(3):
        assert problem.check_prepared(tmp_path / "data").digest() == before
    (said,) = caplog.messages
    assert f"changed: {texts}/a.txt; new: {texts}/c.txt and 1 more; gone: {texts}/b.txt" in said
    command = said.splitlines()[-1]
    assert command.startswith("  t2tp_datagen --problem=languagemodel_textfiles")
    assert f"files={texts}/*.txt" in command and command.endswith("--overwrite")


def test_patterns_of_sent_data_search_only_the_directories_of_its_files(made, tmp_path):
    texts, _ = made
    directory = problems.find("languagemodel_textfiles").directory(tmp_path / "data")
    fields = json.loads((directory / "sources.json").read_text())
    fields["patterns"] = ["/**/*.md"]
    (directory / "sources.json").write_text(json.dumps(fields))
    (tmp_path / "elsewhere").mkdir()
    for path in (tmp_path / "elsewhere/a.md", texts / "b.md"):
        path.touch()
    assert changed_sources(directory) == f"new: {texts}/b.md"


def test_a_file_of_the_same_size_that_is_newer_is_changed(made, caplog):
    texts, check = made
    state = (texts / "a.txt").stat()
    os.utime(texts / "a.txt", ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))
    check()
    assert f"changed: {texts}/a.txt;" in caplog.text


def test_data_are_used_where_the_files_are_not(made, caplog):
    texts, check = made
    for path in texts.iterdir():
        path.unlink()
    texts.rmdir()
    check()
    assert not caplog.text


def test_the_same_texts_of_another_time_and_place_make_the_same_data(made, tmp_path):
    texts, check = made
    moved = texts.rename(tmp_path / "moved")
    os.utime(moved / "a.txt", (0, 0))
    options = f"files={moved}/*.txt,documents=lines,vocab_size=280"
    problem = problems.find("languagemodel_textfiles", options)
    assert problem.prepare(tmp_path / "again").digest() == check().digest()
