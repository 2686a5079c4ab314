"""A user's directory, for the tests of t2tp_datagen."""

import os
import signal
from pathlib import Path

from t2tp import registry
from t2tp.problems.algorithmic import AlgorithmicIdentityBinary40


@registry.register_problem
class SomeDigits(AlgorithmicIdentityBinary40):
    """A problem with 8,000 training samples."""

    sample_counts = {"train": 8000, "validation": 500, "test": 500}


@registry.register_problem
class DyingDigits(SomeDigits):
    """A problem that kills the process that encodes it, once in a data directory."""

    def encoder(self, directory):
        encode, died, encoded = super().encoder(directory), Path(directory).parent / "died", 0

        def encode_or_die(sample):
            nonlocal encoded
            encoded += 1
            if encoded == 3000 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return encode(sample)

        return encode_or_die
