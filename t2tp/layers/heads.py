"""The projections of multi-head attention."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.layers import variables
from t2tp.layers.linear import linear
from t2tp.layers.normalization import Norm

# Variable -> its kind in `t2tp.choices.ADAPTED`.
_TARGETS = {"q": "query", "k": "key", "v": "value"}


class Heads:
    """The query, key, value and output projections of attention (arXiv:1706.03762, section 3.2.2).

    With fewer key-value heads than query heads, this is grouped-query attention (J. Ainslie et al.,
    arXiv:2305.13245); with one key-value head it is multi-query attention (N. Shazeer,
    arXiv:1911.02150). In both cases the dimension of the key-value heads is named `kv_heads`. If
    the numbers of key-value heads and query heads are equal, both dimensions are named `heads`.

    Attributes:
      heads: the dimension of the query heads.
      kv_heads: the dimension of the key-value heads.
      d_kv: the dimension of a head's queries and keys.
      d_v: the dimension of a head's values, by default `d_kv`.
    """

    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        *,
        num_kv_heads: int = 0,
        use_bias: bool = False,
        qkv_bias: bool | None = None,
        d_v: int = 0,
        norm: Norm | None = None,
        norm_all_heads: bool = False,
        attention_multiplier: float = 0.0,
        attention_sinks: bool = False,
        output_scale: float = 1.0,
    ) -> None:
        """Sets the dimensions.

        Args:
          num_heads: number of query heads.
          d_kv: size of a head's queries and keys.
          num_kv_heads: number of key-value heads, which must divide num_heads; 0: num_heads.
          use_bias: whether to add a bias after each matrix.
          qkv_bias: whether to add a bias to queries, keys and values; None: `use_bias`.
          d_v: size of a head's values; 0: d_kv.
          norm: norm of queries and keys before rotary positions; None: no norm.
          norm_all_heads: whether `norm` normalizes over all heads (OLMo 2, arXiv:2501.00656,
            section 3.3.2), not over each head (A. Henry et al., arXiv:2010.04245).
          attention_multiplier: factor of the scores; 0: 1 / sqrt(d_kv).
          attention_sinks: whether each head has an attention sink; see `attention`.
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
        self.d_v = mtf.Dimension("d_v", d_v) if d_v not in (0, d_kv) else self.d_kv
        self._use_bias = use_bias
        self._qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self._norm = norm
        self._norm_all_heads = norm_all_heads
        self._attention_multiplier = attention_multiplier
        self._has_sinks = attention_sinks
        self._output_scale = output_scale

    def queries(self, x: mtf.Tensor, length: mtf.Dimension | None) -> mtf.Tensor:
        """Projects [batch..., length, d_model] by the variable `q`; the norm's scope is `q_norm`.

        Returns:
          [batch..., heads, length, d_kv], without the length if `length` is None.
        """
        q = self._normed("q_norm", self._project(x, "q", [self.heads, self.d_kv], length))
        # With `transfer_from`, scores fall as 1 / d_kv (arXiv:2203.03466, definition 4.1).
        wider = context_of(q.mesh).ratio("d_kv")
        # Attention divides scores by sqrt(d_kv). The factor of `attention_multiplier` undoes this.
        multiplier = self._attention_multiplier
        factor = multiplier * self.d_kv.size**0.5 / wider if multiplier else wider**-0.5
        return q if factor == 1.0 else q * factor

    def keys_and_values(
        self, x: mtf.Tensor, length: mtf.Dimension | None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Projects to keys and values [batch..., kv_heads, length, d_kv or d_v], like `queries`.

        The variables are `k` and `v`, and the scope of the keys' norm is `k_norm`.
        """
        k = self._normed("k_norm", self._project(x, "k", [self.kv_heads, self.d_kv], length))
        return k, self._project(x, "v", [self.kv_heads, self.d_v], length)

    def sinks(self, mesh: mtf.Mesh) -> mtf.Tensor | None:
        """Returns the variable `sinks`, float32 [heads]; None if there are no sinks."""
        if not self._has_sinks:
            return None
        return variables.bias(mesh, "sinks", [self.heads], tf.float32)

    def for_each_query(self, x: mtf.Tensor) -> mtf.Tensor:
        """Repeats keys or values for each query head: [..., kv_heads, ...] to [..., heads, ...].

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
        """Projects [batch..., heads, length, d_v] by the variable `output` to `shape`."""
        d_model = shape.dims[-1]
        stddev = (self.heads.size * self.d_v.size) ** -0.5 * self._output_scale
        dims = [self.heads, self.d_v]
        return linear(
            attended,
            "output",
            dims,
            [d_model],
            stddev=stddev,
            output_shape=shape,
            target="output",
            bias="output_bias" if self._use_bias else "",
        )

    def _normed(self, name: str, x: mtf.Tensor) -> mtf.Tensor:
        if self._norm is None:
            return x
        of_all = [dim for dim in x.shape.dims if dim in (self.heads, self.kv_heads, self.d_kv)]
        with tf1.variable_scope(name):
            return self._norm(x, of_all if self._norm_all_heads else of_all[-1:])

    def _project(
        self, x: mtf.Tensor, name: str, made: list[mtf.Dimension], length: mtf.Dimension | None
    ) -> mtf.Tensor:
        *rest, d_model = x.shape.dims
        batch = [d for d in rest if d != length]
        lengths = [] if length is None else [length]
        return linear(
            x,
            name,
            [d_model],
            made,
            stddev=d_model.size**-0.5,
            output_shape=mtf.Shape([*batch, made[0], *lengths, made[1]]),
            target=_TARGETS[name],
            bias=f"{name}_bias" if self._qkv_bias else "",
        )


def padded_to(x: mtf.Tensor, dim: mtf.Dimension, length: mtf.Dimension) -> mtf.Tensor:
    """Zero-pads `x` along `dim` to `length`; raises ValueError if `dim` is longer than `length`."""
    beyond = length.size - dim.size
    if beyond < 0:
        raise ValueError(f"{dim.size} tokens do not fit into the {length.size} that are decoded.")
    name = dim.name
    if beyond:
        # The dimension must not be split while it is padded: no layout rule matches a name with a
        # space.
        name = f"whole {dim.name}"
        x = mtf.pad(mtf.rename_dimension(x, dim.name, name), [0, beyond], name)
    return mtf.rename_dimension(x, name, length.name) if name != length.name else x
