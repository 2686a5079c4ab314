"""Python's own standard library as a text to model: on every machine, without a download."""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2tp import registry
from t2tp.problems.languagemodel import LanguageModelProblem

if TYPE_CHECKING:
    import tensorflow_datasets as tfds


@registry.register_problem
class LanguagemodelPythonStdlib(LanguageModelProblem):
    """The standard library's .py sources, about 30 MB; the same Python gives the same data."""

    def source_dir(self) -> Path:
        """Returns the folder of the sources: the standard library of the Python that runs."""
        return Path(sysconfig.get_path("stdlib"))

    def dataset_builder(self, folder: Path) -> tfds.core.DatasetBuilder:
        """Returns the builder of the `python_stdlib` dataset."""
        from t2tp.problems.python_stdlib_builder import PythonStdlib, SourcesConfig

        config = SourcesConfig(name=_python(), source_dir=self.source_dir())
        return PythonStdlib(data_dir=folder, config=config, file_format="array_record")

    def origin(self, builder: tfds.core.DatasetBuilder) -> dict[str, Any]:
        """Says which Python it was, and how many of its files were skipped."""
        return {"python": _python(), **builder.info.metadata}


def _python() -> str:
    """Returns for instance "cpython-3.12.1"."""
    return f"{platform.python_implementation().lower()}-{platform.python_version()}"
