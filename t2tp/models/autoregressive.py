"""The interface of autoregressive models for decoding."""

import abc
from collections.abc import Mapping

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.layers.passes import DecodeState
from t2tp.layers.positions import context_length
from t2tp.models.model import Model

# Optional feature, int32 [batch]: the input token of each row at position 0. It replaces the hparam
# `bos_token_id`. Models that read it list it in `may_take`.
FIRST_TOKEN = "first_token"


class AutoregressiveModel(Model):
    """A model that predicts each token of `targets` from the previous tokens.

    A model defines `build_loss`, `build_prefill` and `build_decode_step`; callers call `loss`,
    `prefill` and `decode_step`. `prefill` reads the prompt. `decode_step` is then called in a loop,
    once per position. Together they compute the same logits as `loss`, position by position. The
    tensors of `prefill` have one batch dimension. The tokens and the state of `decode_step` may
    have more batch dimensions, such as [batch, beam].
    """

    @property
    def max_length(self) -> int:
        """The max number of inputs, and of targets."""
        return context_length(self.hparams)

    def prefix_of(self, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Returns the feature `prefix`, which gives the batch size if no other feature does.

        Raises:
          ValueError: `prefix` is missing.
        """
        if "prefix" not in features:
            raise ValueError(
                f"{type(self).__name__} begins with the feature `prefix`, int32 [batch,"
                " prefix_length]; zeros [batch, 1] are no prefix at all."
            )
        return features["prefix"]

    def prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """Reads the prompt and returns the decoding state.

        Args:
          mesh: the program's mesh.
          features: optionally `prefix`, int32 [batch, prefix_length], the first tokens of each row,
            padded at the end. The model's other features, such as `inputs` and
            `inputs_segmentation`, are the same as in training.
          length: the max number of tokens per row, including the prefix.

        Returns:
          the state of positions 0 to prefix_length - 1 in every row. Padding after a row's own
          prefix does no harm: `decode_step` attends to no later position than its own, and
          overwrites the state of its own position.
        """
        with self.building(mesh):
            return self.build_prefill(mesh, features, length)

    @abc.abstractmethod
    def build_prefill(
        self, mesh: Mesh, features: Mapping[str, mtf.Tensor], length: mtf.Dimension
    ) -> DecodeState:
        """Builds `prefill`; a model defines this method."""

    def decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """Predicts the next token.

        Args:
          mesh: the program's mesh.
          tokens: int32 [batch...], the previous token; ignored at position 0.
          positions: int32 [batch...], the position of the token to predict. Rows may differ.
          state: result of `prefill` or of the previous step.

        Returns:
          the token's logits, float32 [batch..., vocab], and the state including this position, with
          the same names and shapes. Logits of ids from `vocab_sizes["targets"]` on are padding.
        """
        with self.building(mesh):
            return self.build_decode_step(mesh, tokens, positions, state)

    @abc.abstractmethod
    def build_decode_step(
        self, mesh: Mesh, tokens: mtf.Tensor, positions: mtf.Tensor, state: DecodeState
    ) -> tuple[mtf.Tensor, DecodeState]:
        """Builds `decode_step`; a model defines this method."""


def previous_tokens(
    tokens: mtf.Tensor, positions: mtf.Tensor, bos_token_id: int | mtf.Tensor = 0
) -> mtf.Tensor:
    """Returns `tokens` with `bos_token_id` at position 0.

    `tokens` and `positions` are the arguments of `decode_step`. `bos_token_id` is one id for all
    rows, or int32 [batch...].
    """
    return mtf.where(mtf.equal(positions, 0), mtf.zeros_like(tokens) + bos_token_id, tokens)
