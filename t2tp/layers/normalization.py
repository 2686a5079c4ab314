"""RMS norm and layer norm."""

from collections.abc import Sequence

from t2tp import mtf
from t2tp.choices import NORM_TYPES
from t2tp.layers import variables
from t2tp.ops.norms.layer_norm import layer_norm, rms_norm
from t2tp.suggestions import check_known


class Norm:
    """RMS norm or layer norm with variables in the current scope."""

    def __init__(self, norm_type: str = "rms", norm_epsilon: float = 1e-6) -> None:
        """Sets type and epsilon.

        Args:
          norm_type: `rms` (arXiv:1910.07467) has a scale. `rms_unit_offset` multiplies by
            1 + scale, as Gemma does. `layer` (arXiv:1607.06450) has a scale and a bias.
          norm_epsilon: added to the mean square, or to the variance.

        Raises:
          ValueError: the type is unknown.
        """
        check_known(norm_type, NORM_TYPES, "norms", f"norm_type is {norm_type!r}")
        self._norm_type = norm_type
        self._epsilon = norm_epsilon

    def __call__(self, x: mtf.Tensor, dims: Sequence[mtf.Dimension] | None = None) -> mtf.Tensor:
        """Normalizes by the variables `norm_scale` and, for `layer`, `norm_bias`.

        The default of `dims`, the dimensions to normalize over, is the last one; `layer` supports
        only this.
        """
        dims = x.shape.dims[-1:] if dims is None else dims
        if self._norm_type == "rms_unit_offset":
            offset = variables.norm(x.mesh, "norm_scale", dims, 0.0)
            return rms_norm(x, offset + 1.0, dims, self._epsilon)
        scale = variables.norm(x.mesh, "norm_scale", dims, 1.0)
        if self._norm_type == "rms":
            return rms_norm(x, scale, dims, self._epsilon)
        bias = variables.norm(x.mesh, "norm_bias", dims, 0.0)
        return layer_norm(x, scale, bias, dims[-1], self._epsilon)
