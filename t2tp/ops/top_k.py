"""The k largest elements along a dimension that may be split over the mesh."""

from __future__ import annotations

from t2tp import upstream as mtf
from t2tp.ops.gather import GatherGradOperation


def top_k(
    x: mtf.Tensor, reduced_dim: mtf.Dimension, k_dim: mtf.Dimension, name: str | None = None
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """The largest elements, the largest first; among equal ones the one of the lowest index.

    mesh-tensorflow finds two to four of them one after the other, adding -1e9 to each one found,
    and makes a one-hot tensor of them for the gradient. Here each processor finds its own
    candidates, and k of each are gathered.

    Args:
      x: [..., reduced_dim, ...], numbers.
      reduced_dim: a dimension of `x`.
      k_dim: its size is k; it cannot be split.
      name: of the operation.

    Returns:
      values, of the dtype of `x`, and int32 indices, both [..., k_dim].

    Raises:
      ValueError: `x` has no `reduced_dim`, or k is above its size.
    """
    reduced_dim, k_dim = (mtf.convert_to_dimension(d) for d in (reduced_dim, k_dim))
    values, indices = TopKOperation(x, reduced_dim, k_dim, name=name).outputs
    return values, indices


class TopKOperation(mtf.TopKOperation):
    """Input x; outputs values and indices."""

    def gradient(self, grad_ys: list[mtf.Tensor | None]) -> list[mtf.Tensor]:
        x, indices = self.inputs[0], self.outputs[1]
        return GatherGradOperation(indices, grad_ys[0], x.shape, self._reduced_dim).outputs
