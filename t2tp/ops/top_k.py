"""Top k along a dimension that may be split over the mesh."""

from __future__ import annotations

from t2tp import upstream
from t2tp.lowering.operation import Operation
from t2tp.ops.gather import GatherGradOperation


def top_k(
    x: upstream.Tensor,
    reduced_dim: upstream.Dimension,
    k_dim: upstream.Dimension,
    name: str | None = None,
) -> tuple[upstream.Tensor, upstream.Tensor]:
    """Returns the k largest elements in descending order; ties by ascending index.

    mesh-tensorflow finds two to four of them one after the other, adding -1e9 to each one found,
    and creates a one-hot tensor of them for the gradient. Here each processor finds its own
    candidates, and k from each are all-gathered.

    Args:
      x: [..., reduced_dim, ...], numbers.
      reduced_dim: a dimension of `x`.
      k_dim: its size is k; it cannot be split.
      name: operation name.

    Returns:
      values, of the dtype of `x`, and int32 indices, both [..., k_dim].

    Raises:
      ValueError: `x` has no `reduced_dim`, or k is above its size.
    """
    reduced_dim, k_dim = (upstream.convert_to_dimension(d) for d in (reduced_dim, k_dim))
    values, indices = TopKOperation(x, reduced_dim, k_dim, name=name).outputs
    return values, indices


class TopKOperation(Operation, upstream.TopKOperation):
    """Input: x. Outputs: values and indices."""

    def __init__(
        self,
        x: upstream.Tensor,
        reduced_dim: upstream.Dimension,
        k_dim: upstream.Dimension,
        name: str | None,
    ) -> None:
        super().__init__(x, reduced_dim, k_dim, name=name)
        self.ordered_dims = [reduced_dim]

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        x, indices = self.inputs[0], self.outputs[1]
        return GatherGradOperation(indices, grad_ys[0], x.shape, self._reduced_dim).outputs
