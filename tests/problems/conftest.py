"""A small problem for tests: some files of the standard library, and edge cases."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from t2tp.problems.python_stdlib import LanguagemodelPythonStdlib
from tests.problems.mocked_datasets import mocked_datasets

AWKWARD = {
    "awkward/tabs.py": b"if x:\n\tpass\n\t\t  \n\n\n   ",
    "awkward/carriage_returns.py": b"a = 1\r\nb = 2\r",
    "awkward/space_sign.py": "bar = '\u2581\u2581 \u2581x'".encode(),
    "awkward/marks.py": b"\xef\xbb\xbfx = '</s><unk><pad><0x0A>\x00'",
    "awkward/emoji.py": "s = '\U0001f600 e\u0301 \u2585\u2047'".encode(),
}
# Enough names to be distributed over all splits, whatever the standard library has.
SMALL = {f"small/module_{i}.py": b"number = %d\n" % i for i in range(60)}
NOT_DOCUMENTS = {
    "awkward/latin_1.py": "s = 'é'".encode("latin-1"),
    "awkward/empty.py": b"",
    "awkward/notes.txt": b"not Python",
    "site-packages/installed.py": b"x = 1",
    "awkward/__pycache__/cached.py": b"x = 1",
}


class TinyStdlib(LanguagemodelPythonStdlib):
    """The problem of the standard library, with the sources of a test's directory."""

    vocabulary_size = 1024

    def __init__(self, sources: Path):
        super().__init__()
        self._sources = sources

    def source_dir(self) -> Path:
        return self._sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sources")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]:
        shutil.copy(path, directory)
    for name, contents in (AWKWARD | SMALL | NOT_DOCUMENTS).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return directory


@pytest.fixture(scope="session")
def problem(sources) -> TinyStdlib:
    return TinyStdlib(sources)


@pytest.fixture(scope="session")
def data_dir(problem, tmp_path_factory) -> Path:
    """Returns the directory of the prepared data of `problem`, read-only."""
    directory = tmp_path_factory.mktemp("data")
    problem.prepare(directory)
    return directory


@pytest.fixture
def data_copy(data_dir, tmp_path) -> Path:
    """Returns a copy of `data_dir` to damage."""
    return Path(shutil.copytree(data_dir, tmp_path / "data"))


@pytest.fixture
def mocked():
    """Mocks TFDS's catalog with `mocked_datasets`."""
    with mocked_datasets():
        yield
