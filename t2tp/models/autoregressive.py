"""What a model that writes symbol by symbol is to decoding."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from t2tp import mtf
from t2tp.mesh.program import Mesh
from t2tp.models.model import Model

# What a model remembers between two steps, such as keys and values: tensors [batch..., ...].
State = dict[str, mtf.Tensor]


class AutoregressiveModel(Model):
    """A model that predicts each symbol of `targets` from those before it.

    `begin` reads what is given; `step` is then called once a position, inside one loop. Together
    they give the logits that `loss` sees, position by position. Of `begin` the batch is one
    dimension; `step` takes more of them, such as [batch, beam], with a state that has them too.
    """

    @property
    def max_length(self) -> int | None:
        """Most symbols of a row, of its inputs as of what is written; None: any number."""
        return self.hparams.max_length if "max_length" in self.hparams else None

    def prefix_of(self, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """The feature `prefix`, for a model that nothing else tells how large the batch is.

        Raises:
          ValueError: there is none.
        """
        if "prefix" not in features:
            raise ValueError(
                f"{type(self).__name__} begins with the feature `prefix`, int32 [batch,"
                " prefix_length]; zeros [batch, 1] are no prefix at all."
            )
        return features["prefix"]

    @abc.abstractmethod
    def begin(self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension) -> State:
        """Reads what decoding begins with.

        Args:
          mesh: the program's mesh.
          features: `prefix`, int32 [batch, prefix_length], the first symbols of each row, padded
            at the end; it may be left out. What else the model reads, such as `inputs` and
            `inputs_segmentation`, as in training.
          length: how many symbols a row will have at most, the prefix among them.

        Returns:
          a state that holds positions 0 to prefix_length - 1 of every row. Those beyond a row's
          own prefix count for nothing: `step` sees no position after its own, and writes those
          that it is called for.
        """

    @abc.abstractmethod
    def step(
        self, mesh: Mesh, symbols: mtf.Tensor, positions: mtf.Tensor, state: State
    ) -> tuple[mtf.Tensor, State]:
        """Predicts the symbol at a position.

        Args:
          mesh: the program's mesh.
          symbols: int32 [batch...], the symbol before; at position 0 it does not matter.
          positions: int32 [batch...], of the symbol to predict, each row its own.
          state: of `begin` or of the step before.

        Returns:
          its logits, float32 [batch..., vocab], where ids from `vocab_sizes["targets"]` on are
          never to be chosen; and the state that has this position too, with the same names and
          shapes.
        """


def symbols_before(symbols: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
    """The symbols that `step` is given, with the 0 that stands before the first position.

    Args:
      symbols: int32 [batch...].
      positions: int32 [batch...].
    """
    return mtf.where(mtf.equal(positions, 0), mtf.zeros_like(symbols), symbols)
