"""A problem with few samples, and one that shows which processes encode them."""

import os

from t2tp import registry
from t2tp.problems.algorithmic import AlgorithmicIdentityBinary40


@registry.register_problem
class FewDigits(AlgorithmicIdentityBinary40):
    """A problem with 1,000 training samples."""

    sample_counts = {"train": 1000, "validation": 20, "test": 20}


@registry.register_problem
class WatchedDigits(FewDigits):
    """A problem that records the ids of the encoding processes."""

    def encoder(self, directory):
        (directory.parent / f"encoder-{os.getpid()}").touch()
        return super().encoder(directory)
