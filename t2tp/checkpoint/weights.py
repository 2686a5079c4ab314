"""The weights of a run: the moving averages (`ema_decay`) of the variables that have one.

Evaluation and decoding build programs that read the averages (`t2tp.optim.ema`). Whatever takes
weights out of a checkpoint instead reads it through `RunWeights`, and so gets the same weights.
"""

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from t2tp.checkpoint.reading import Checkpoint
from t2tp.checkpoint.slices import Slice
from t2tp.program.variables import average_of


class RunWeights(Checkpoint):
    """A checkpoint, read as if each variable with a moving average had the average's value."""

    def stored_name(self, name: str) -> str:
        """Returns the name of the tensor that is read as the variable `name`."""
        average = average_of(name)
        return average if average in self.shapes() else name

    def dtypes(self) -> dict[str, tf.DType]:
        """Returns the dtype of each tensor, by name."""
        stored = super().dtypes()
        return {name: stored[self.stored_name(name)] for name in stored}

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices; arguments and errors as for `Checkpoint.read`."""
        return super().read([replace(each, name=self.stored_name(each.name)) for each in slices])
