"""The plan of a problem's data: the options, versions and code that determine the data.

An interrupted attempt is resumed only if the plan has not changed.
"""

import hashlib
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from t2tp.problems.prepare.preparable import Preparable
from t2tp.problems.prepare.settings import GenerationSettings

# Packages that affect the files.
_PACKAGES = ("t2tp", "numpy", "sentencepiece", "tensorflow-datasets")


def plan_of(problem: Preparable, settings: GenerationSettings, with_neighbours: bool) -> str:
    """Returns, as JSON, everything that determines the data, except the samples."""
    fields = [
        problem.name,
        problem.generation_options(),
        settings.num_shards,
        versions(),
        problem.data_dependencies(),
    ]
    return json.dumps([*fields, code_digest(type(problem), with_neighbours)])


def versions() -> dict[str, str]:
    """Returns the versions of the packages that affect the data."""
    version_of = {}
    for package in _PACKAGES:
        try:
            version_of[package] = version(package)
        except PackageNotFoundError:  # an optional package that was not used
            continue
    return version_of


def code_digest(kind: type, with_neighbours: bool) -> str:
    """Returns a digest of the modules of a problem's class and base classes.

    `with_neighbours` includes all modules of a user's directory, because the problem's modules may
    import them.
    """
    files = set()
    for each in kind.__mro__:
        package = each.__module__.partition(".")[0]
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        if file is not None and package not in sys.stdlib_module_names:  # skips for instance abc
            is_ours = package == "t2tp"
            is_alone = is_ours or not with_neighbours
            files |= {Path(file)} if is_alone else {*Path(file).parent.glob("*.py")}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
