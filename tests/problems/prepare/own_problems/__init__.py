"""A user's directory, for the tests of t2tp_datagen."""

from t2tp import registry
from t2tp.problems.algorithmic import AlgorithmicIdentityBinary40


@registry.register_problem
class SomeDigits(AlgorithmicIdentityBinary40):
    """A problem with 8,000 training samples."""

    sample_counts = {"train": 8000, "validation": 500, "test": 500}
