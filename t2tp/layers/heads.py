"""Queries, keys and values of several heads, and back."""

from __future__ import annotations

from t2tp import mtf
from t2tp.layers import variables


class Heads:
    """The four matrices of multi-head attention (arXiv:1706.03762, section 3.2.2).

    With fewer heads of keys and values than of queries it is grouped-query attention (J. Ainslie et
    al., arXiv:2305.13245), with one multi-query attention (N. Shazeer, arXiv:1911.02150); their
    dimension is then `kv_heads`, otherwise it is `heads` too.

    Attributes:
      heads: the dimension of the queries.
      kv_heads: that of keys and values.
      d_kv: size of a head.
    """

    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        *,
        num_kv_heads: int = 0,
        use_bias: bool = False,
        output_scale: float = 1.0,
    ) -> None:
        """Says how many.

        Args:
          num_heads: of the queries.
          d_kv: size of a head.
          num_kv_heads: of keys and values; 0: as many as of the queries.
          use_bias: whether to add a bias after each matrix.
          output_scale: factor of the initial values of `output`.

        Raises:
          ValueError: num_kv_heads does not divide num_heads.
        """
        if num_kv_heads and num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads {num_kv_heads} must divide num_heads {num_heads}, so that each"
                " serves as many heads."
            )
        self.heads = mtf.Dimension("heads", num_heads)
        self.kv_heads = self.heads
        if num_kv_heads not in (0, num_heads):
            self.kv_heads = mtf.Dimension("kv_heads", num_kv_heads)
        self.d_kv = mtf.Dimension("d_kv", d_kv)
        self._use_bias = use_bias
        self._output_scale = output_scale

    def queries(self, x: mtf.Tensor, length: mtf.Dimension | None) -> mtf.Tensor:
        """[batch..., length, d_model] -> [batch..., heads, length, d_kv]; all without a length if
        `length` is None. The variable `q`."""
        return self._project(x, "q", self.heads, length)

    def keys_and_values(
        self, x: mtf.Tensor, length: mtf.Dimension | None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """The same for both, with `kv_heads`. The variables `k` and `v`."""
        k, v = (self._project(x, name, self.kv_heads, length) for name in ("k", "v"))
        return k, v

    def for_each_query(self, x: mtf.Tensor) -> mtf.Tensor:
        """[..., kv_heads, ...] -> [..., heads, ...]: each head of queries gets the one that serves
        it, query head h number h // (heads / kv_heads)."""
        if self.kv_heads == self.heads:
            return x
        at = x.shape.dims.index(self.kv_heads)
        before, after = x.shape.dims[:at], x.shape.dims[at + 1 :]
        served = mtf.Dimension("served_heads", self.heads.size // self.kv_heads.size)
        spread = mtf.broadcast(x, mtf.Shape([*before, self.kv_heads, served, *after]))
        return mtf.reshape(spread, mtf.Shape([*before, self.heads, *after]))

    def output(self, attended: mtf.Tensor, shape: mtf.Shape) -> mtf.Tensor:
        """[batch..., heads, length, d_kv] -> `shape`, [batch..., length, d_model]. The variable
        `output`."""
        d_model = shape.dims[-1]
        stddev = (self.heads.size * self.d_kv.size) ** -0.5 * self._output_scale
        dims = [self.heads, self.d_kv, d_model]
        matrix = variables.weight(attended.mesh, "output", dims, stddev, attended.dtype)
        y = mtf.einsum([attended, matrix], output_shape=shape)
        return self._with_bias(y, "output", [d_model])

    def _project(
        self, x: mtf.Tensor, name: str, heads: mtf.Dimension, length: mtf.Dimension | None
    ) -> mtf.Tensor:
        *rest, d_model = x.shape.dims
        batch = [d for d in rest if d != length]
        places = [] if length is None else [length]
        dims = [d_model, heads, self.d_kv]
        matrix = variables.weight(x.mesh, name, dims, d_model.size**-0.5, x.dtype)
        shape = mtf.Shape([*batch, heads, *places, self.d_kv])
        y = mtf.einsum([x, matrix], output_shape=shape)
        return self._with_bias(y, name, [heads, self.d_kv])

    def _with_bias(self, y: mtf.Tensor, name: str, dims: list[mtf.Dimension]) -> mtf.Tensor:
        if not self._use_bias:
            return y
        bias = variables.zeros(y.mesh, f"{name}_bias", dims, y.dtype)
        return mtf.add(y, bias, output_shape=y.shape)


def padded_to(x: mtf.Tensor, dim: mtf.Dimension, length: mtf.Dimension) -> mtf.Tensor:
    """`x` with zeros behind, so that its dimension `dim` becomes `length`.

    Raises:
      ValueError: `length` is shorter.
    """
    beyond = length.size - dim.size
    if beyond < 0:
        raise ValueError(f"{dim.size} symbols do not fit into the {length.size} that are decoded.")
    name = dim.name
    if beyond:
        # What is padded must be whole, and no layout has a name of two words.
        name = f"whole {dim.name}"
        x = mtf.pad(mtf.rename_dimension(x, dim.name, name), [0, beyond], name)
    return mtf.rename_dimension(x, name, length.name) if name != length.name else x
