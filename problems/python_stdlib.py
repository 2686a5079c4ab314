"""Language modelling on Python's standard library; it needs no download."""

import hashlib
import platform
import sysconfig
from pathlib import Path
from typing import Any

from absl import logging

from t2tp import registry
from t2tp.problems.data.sample import Samples
from t2tp.problems.languagemodel import LanguageModelProblem

_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}

# Percentage of the files in each held-out split.
_PERCENT = {"validation": 3, "test": 3}


@registry.register_problem
class LanguagemodelPythonStdlib(LanguageModelProblem):
    """The standard library's .py sources, about 30 MB; the same Python gives the same data."""

    def source_dir(self) -> Path:
        """Returns the directory of the running Python's standard library."""
        return Path(sysconfig.get_path("stdlib"))

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the documents of a split: its non-empty UTF-8 files, sorted by path.

        Raises:
          ValueError: there are no sources.
        """
        sources = self.source_dir()
        texts, num_skipped = [], 0
        for path in source_files(sources):
            if split_of(path) == split:
                try:
                    # Not read_text(): it would turn "\r\n" into "\n".
                    texts.append((sources / path).read_bytes().decode("utf-8"))
                except UnicodeDecodeError:
                    # The standard library's own tests have some files in other encodings.
                    num_skipped += 1
        documents = [{"text": text} for text in texts if text]
        num_skipped += len(texts) - len(documents)
        if num_skipped:
            logging.info(f"{split}: skipped {num_skipped} files, empty or not UTF-8, in {sources}")
        return documents

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the version of Python."""
        return {"python": _python()}

    def data_dependencies(self) -> dict[str, Any]:
        """Returns Python's version and the path of its library."""
        sources = {"python": _python(), "sources": str(self.source_dir())}
        return {**super().data_dependencies(), **sources}


@registry.register_problem
class LanguagemodelPythonStdlibBytes(LanguagemodelPythonStdlib):
    """The standard library's sources, with a token for each byte."""

    vocabulary_kind = "byte"


@registry.register_problem
class LanguagemodelPythonStdlibCharacters(LanguagemodelPythonStdlib):
    """The standard library's sources, with tokens for the 256 most frequent characters."""

    vocabulary_kind = "character"
    vocabulary_size = 259 + 256


def source_files(directory: Path) -> list[str]:
    """Returns the `.py` files below a directory, without installed packages, sorted.

    Raises:
      ValueError: there are no such files.
    """
    found = (path.relative_to(directory) for path in directory.rglob("*.py") if path.is_file())
    paths = sorted(path.as_posix() for path in found if _NOT_OURS.isdisjoint(path.parts))
    if not paths:
        raise ValueError(f"no .py files in {directory}")
    return paths


def split_of(path: str) -> str:
    """Returns the split of a file, which depends only on the path."""
    percentile = int.from_bytes(hashlib.sha256(path.encode("utf-8")).digest()[:8], "big") % 100
    for split, percent in _PERCENT.items():
        if percentile < percent:
            return split
        percentile -= percent
    return "train"


def _python() -> str:
    """Returns for instance "cpython-3.12.1"."""
    return f"{platform.python_implementation().lower()}-{platform.python_version()}"
