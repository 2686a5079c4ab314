"""The interface of autoregressive models for decoding."""

import abc
from collections.abc import Mapping

from t2tp import mtf
from t2tp.layers.passes import DecodeState
from t2tp.models.model import Model
from t2tp.program.program import Mesh

# The optional feature with the input token of each row at position 0, int32 [batch], in place of
# the hparam `bos_token_id`; models that read it name it in `may_take`.
FIRST_TOKEN = "first_token"


class AutoregressiveModel(Model):
    """A model that predicts each token of `targets` from the previous ones.

    `prefill` reads the prompt; `decode_step` is then called in a loop, once per position. Together
    they compute the logits of `loss`, position by position. `prefill` has one batch dimension;
    `decode_step` may have more, such as [batch, beam], with a state that has them too.
    """

    @property
    def max_length(self) -> int | None:
        """The max number of tokens of inputs or targets; None: unlimited."""
        return self.hparams.max_length if "max_length" in self.hparams else None

    def prefix_of(self, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Returns the feature `prefix`, for models whose batch size no other feature gives.

        Raises:
          ValueError: `prefix` is missing.
        """
        if "prefix" not in features:
            raise ValueError(
                f"{type(self).__name__} begins with the feature `prefix`, int32 [batch,"
                " prefix_length]; zeros [batch, 1] are no prefix at all."
            )
        return features["prefix"]

    @abc.abstractmethod
    def prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """Reads the prompt and returns the decoding state.

        Args:
          mesh: the program's mesh.
          features: `prefix`, int32 [batch, prefix_length], the first tokens of each row, padded at
            the end; optional. The model's other features, such as `inputs` and
            `inputs_segmentation`, as in training.
          length: the max number of tokens per row, including the prefix.

        Returns:
          a state with positions 0 to prefix_length - 1 of every row. Those beyond a row's own
          prefix are ignored: `decode_step` attends to no position after its own, and overwrites the
          position it is called for.
        """

    @abc.abstractmethod
    def decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """Predicts the next token.

        Args:
          mesh: the program's mesh.
          tokens: int32 [batch...], the previous token; ignored at position 0.
          positions: int32 [batch...], of the token to predict, which may differ between rows.
          state: from `prefill` or the previous step.

        Returns:
          its logits, float32 [batch..., vocab], where ids from `vocab_sizes["targets"]` on must
          never be chosen; and the state including this position, with the same names and shapes.
        """


def previous_tokens(
    tokens: mtf.Tensor, positions: mtf.Tensor, bos_token_id: int | mtf.Tensor = 0
) -> mtf.Tensor:
    """Returns the input tokens of `decode_step`.

    Args:
      tokens: int32 [batch...].
      positions: int32 [batch...].
      bos_token_id: the input token at position 0, or int32 [batch...] of them.
    """
    return mtf.where(mtf.equal(positions, 0), mtf.zeros_like(tokens) + bos_token_id, tokens)
