"""The projections of multi-head attention."""

from __future__ import annotations

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.linear import linear
from t2tp.ops.variables.transfer import ratio

# variable -> its kind in `t2tp.choices.ADAPTED`
_TARGETS = {"q": "query", "k": "key", "v": "value"}


class Heads:
    """The query, key, value and output projections of attention (arXiv:1706.03762, section 3.2.2).

    With fewer key-value heads than query heads it is grouped-query attention (J. Ainslie et al.,
    arXiv:2305.13245), with one it is multi-query attention (N. Shazeer, arXiv:1911.02150); their
    dimension is then `kv_heads`, otherwise `heads`.

    Attributes:
      heads: the dimension of the queries.
      kv_heads: the dimension of keys and values.
      d_kv: the dimension of a head.
    """

    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        *,
        num_kv_heads: int = 0,
        use_bias: bool = False,
        qkv_bias: bool | None = None,
        is_scaled: bool = True,
        output_scale: float = 1.0,
    ) -> None:
        """Sets the dimensions.

        Args:
          num_heads: query heads.
          d_kv: size of a head.
          num_kv_heads: key-value heads; 0: num_heads.
          use_bias: whether to add a bias after each matrix.
          qkv_bias: whether queries, keys and values have one; None: as `use_bias` says.
          is_scaled: whether scores are divided by sqrt(d_kv), which attention does; otherwise
            queries are multiplied by it.
          output_scale: factor of the initial values of `output`.

        Raises:
          ValueError: num_kv_heads does not divide num_heads.
        """
        if num_kv_heads and num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads {num_kv_heads} must divide num_heads {num_heads}, so that each"
                " serves the same number of queries."
            )
        self.heads = mtf.Dimension("heads", num_heads)
        self.kv_heads = self.heads
        if num_kv_heads not in (0, num_heads):
            self.kv_heads = mtf.Dimension("kv_heads", num_kv_heads)
        self.d_kv = mtf.Dimension("d_kv", d_kv)
        self._use_bias = use_bias
        self._qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self._is_scaled = is_scaled
        self._output_scale = output_scale

    def queries(self, x: mtf.Tensor, length: mtf.Dimension | None) -> mtf.Tensor:
        """Projects [batch..., length, d_model] by the variable `q`.

        Returns:
          [batch..., heads, length, d_kv]; without the length if `length` is None.
        """
        q = self._project(x, "q", self.heads, length)
        factor = 1.0 if self._is_scaled else self.d_kv.size**0.5
        # With `transfer_from`, scores fall as 1 / d_kv (arXiv:2203.03466, definition 4.1).
        wider = ratio(q.mesh, "d_kv")
        factor *= wider**-0.5 if self._is_scaled else wider**-1
        return q if factor == 1.0 else q * factor

    def keys_and_values(
        self, x: mtf.Tensor, length: mtf.Dimension | None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Projects to keys and values as `queries`, with `kv_heads`. The variables `k` and `v`."""
        k, v = (self._project(x, name, self.kv_heads, length) for name in ("k", "v"))
        return k, v

    def for_each_query(self, x: mtf.Tensor) -> mtf.Tensor:
        """Repeats [..., kv_heads, ...] to [..., heads, ...].

        Query head h uses key-value head h // (heads / kv_heads).
        """
        if self.kv_heads == self.heads:
            return x
        at = x.shape.dims.index(self.kv_heads)
        before, after = x.shape.dims[:at], x.shape.dims[at + 1 :]
        served = mtf.Dimension("served_heads", self.heads.size // self.kv_heads.size)
        spread = mtf.broadcast(x, mtf.Shape([*before, self.kv_heads, served, *after]))
        return mtf.reshape(spread, mtf.Shape([*before, self.heads, *after]))

    def output(self, attended: mtf.Tensor, shape: mtf.Shape) -> mtf.Tensor:
        """Projects [batch..., heads, length, d_kv] to `shape` by the variable `output`.

        The shape is [batch..., length, d_model].
        """
        d_model = shape.dims[-1]
        stddev = (self.heads.size * self.d_kv.size) ** -0.5 * self._output_scale
        dims = [self.heads, self.d_kv]
        y = linear(
            attended, "output", dims, [d_model], stddev=stddev, output_shape=shape, target="output"
        )
        return _with_bias(y, "output", [d_model]) if self._use_bias else y

    def _project(
        self, x: mtf.Tensor, name: str, heads: mtf.Dimension, length: mtf.Dimension | None
    ) -> mtf.Tensor:
        *rest, d_model = x.shape.dims
        batch = [d for d in rest if d != length]
        lengths = [] if length is None else [length]
        y = linear(
            x,
            name,
            [d_model],
            [heads, self.d_kv],
            stddev=d_model.size**-0.5,
            output_shape=mtf.Shape([*batch, heads, *lengths, self.d_kv]),
            target=_TARGETS[name],
        )
        return _with_bias(y, name, [heads, self.d_kv]) if self._qkv_bias else y


def _with_bias(y: mtf.Tensor, name: str, dims: list[mtf.Dimension]) -> mtf.Tensor:
    bias = variables.bias(y.mesh, f"{name}_bias", dims, y.dtype)
    return mtf.add(y, bias, output_shape=y.shape)


def padded_to(x: mtf.Tensor, dim: mtf.Dimension, length: mtf.Dimension) -> mtf.Tensor:
    """Returns `x` zero-padded along `dim`, which becomes `length`.

    Raises:
      ValueError: `length` is shorter.
    """
    beyond = length.size - dim.size
    if beyond < 0:
        raise ValueError(f"{dim.size} tokens do not fit into the {length.size} that are decoded.")
    name = dim.name
    if beyond:
        # A padded dimension must not be split, and no layout has a name of two words.
        name = f"whole {dim.name}"
        x = mtf.pad(mtf.rename_dimension(x, dim.name, name), [0, beyond], name)
    return mtf.rename_dimension(x, name, length.name) if name != length.name else x
