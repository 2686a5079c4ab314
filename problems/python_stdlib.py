"""Language modelling on Python's standard library, which needs no download."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2tp import registry
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.sources.tfds_source import TfdsSource, import_tfds, quiet

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


@registry.register_problem
class LanguagemodelPythonStdlib(TfdsSource, LanguageModelProblem):
    """The standard library's .py sources, about 30 MB; the same Python gives the same data."""

    def source_dir(self) -> Path:
        """Returns the directory of the sources: the standard library of the running Python."""
        return Path(sysconfig.get_path("stdlib"))

    def dataset_builder(self, directory: Path, tmp_dir: Path) -> tfds.core.DatasetBuilder:
        """Returns the builder of the `python_stdlib` dataset, which is stored with the data."""
        import_tfds()
        from t2tp.problems.python_stdlib_builder import PythonStdlib, SourcesConfig

        config = SourcesConfig(name=_python(), source_dir=self.source_dir())
        return PythonStdlib(
            data_dir=directory / "dataset", config=config, file_format="array_record"
        )

    def provenance(self, directory: Path, tmp_dir: Path) -> dict[str, Any]:
        """Returns the version of Python and the numbers of skipped files."""
        with quiet():
            metadata = self.dataset_builder(directory, tmp_dir).info.metadata
        return {"python": _python(), **(metadata or {})}

    def data_dependencies(self) -> dict[str, Any]:
        """Returns the version of Python and the path of its library."""
        sources = {"python": _python(), "sources": str(self.source_dir())}
        return {**super().data_dependencies(), **sources}


@registry.register_problem
class LanguagemodelPythonStdlibBytes(LanguagemodelPythonStdlib):
    """The standard library's sources, a token per byte."""

    vocabulary_kind = "byte"


@registry.register_problem
class LanguagemodelPythonStdlibCharacters(LanguagemodelPythonStdlib):
    """The standard library's sources, a token for each of the 256 most frequent characters."""

    vocabulary_kind = "character"
    vocabulary_size = 259 + 256


def _python() -> str:
    """Returns for instance "cpython-3.12.1"."""
    return f"{platform.python_implementation().lower()}-{platform.python_version()}"
