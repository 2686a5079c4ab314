"""Sums with a learned share of another tensor: token shift and the shortcut of the embeddings."""

from collections.abc import Sequence

from t2tp import mtf
from t2tp.layers import variables


def plus_share(
    x: mtf.Tensor, other: mtf.Tensor, name: str, dims: Sequence[mtf.Dimension], initial: float
) -> mtf.Tensor:
    """Returns `x + share * other`; `share` is a variable [dims] with this name."""
    share = variables.norm(x.mesh, name, dims, initial)
    return x + _scaled(other, mtf.cast(share, x.dtype))


def _scaled(x: mtf.Tensor, share: mtf.Tensor) -> mtf.Tensor:
    """Multiplies `x` by `share`; `exact_sums` can add up the gradient with respect to `share`.

    By default that gradient would be an einsum, whose rounding depends on a device's number of
    heads.
    """

    def gradients(
        explicit_inputs: list[mtf.Tensor], output_grads: list[mtf.Tensor], **_: object
    ) -> list[mtf.Tensor]:
        (x, share), (dy,) = explicit_inputs, output_grads
        return [dy * share, mtf.reduce_sum(dy * x, output_shape=share.shape)]

    return mtf.custom_gradient(lambda x, share: x * share, gradients, [x, share])
