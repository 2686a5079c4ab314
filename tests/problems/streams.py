"""Streams of each kind, with few examples. This module does not import TensorFlow."""

import os
from pathlib import Path

from t2tp import problems, registry
from t2tp.problems.algorithmic import AlgorithmicReverseBinary40, AlgorithmicShiftBinary40
from t2tp.problems.python_stdlib import LanguagemodelPythonStdlibBytes

LENGTH, BATCH, STEPS = 64, 12, 40


@registry.register_problem
class SomeReverses(AlgorithmicReverseBinary40):
    """A problem with fewer examples than the steps read, so that an epoch ends."""

    sample_counts = {"train": 170, "validation": 20, "test": 4}


@registry.register_problem
class SomeShifts(AlgorithmicShiftBinary40):
    """A problem for packed rows."""

    sample_counts = {"train": 90, "validation": 20, "test": 4}


@registry.register_problem
class SomeCopies(AlgorithmicReverseBinary40):
    """A problem to mix with `some_reverses`."""

    sample_counts = {"train": 45, "validation": 20, "test": 4}


@registry.register_problem
class SomeSources(LanguagemodelPythonStdlibBytes):
    """A problem with the beginnings of the files of `email`."""

    def source_dir(self):
        return Path(os.__file__).parent / "email"

    def samples(self, split, directory, tmp_dir):
        paths = sorted(self.source_dir().glob("*.py"))
        return [{"text": path.read_text()[:600]} for path in paths]


STREAMS = {
    "windows": ("some_sources", ""),
    "padded": ("some_reverses", ""),
    "packed": ("some_shifts", "arrangement=packed"),
    "bucketed": ("some_reverses", "arrangement=bucketed"),
    "mixture": ("mixture:some_reverses=0.6,some_copies=0.4", ""),
    "schedule": ("mixture:some_reverses=1,some_copies=0;9:some_reverses=1,some_copies=2", ""),
    "pictures": ("image_digits", ""),
}


def prepare_all(directory):
    """Prepares the data of all streams."""
    for name in ("some_sources", "some_reverses", "some_shifts", "some_copies", "image_digits"):
        problems.find(name).prepare(directory)


def open_stream(data_dir, kind):
    return problems.find(*STREAMS[kind]).stream(data_dir, "train", BATCH, LENGTH, seed=5)
