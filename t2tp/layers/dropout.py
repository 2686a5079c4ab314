"""Dropout whose mask may be broadcast along dimensions."""

from collections.abc import Sequence

from t2tp import mtf
from t2tp.hparam_limits import Limits


class Dropout:
    """Dropout with a fixed rate."""

    def __init__(self, rate: float, broadcast_dims: Sequence[str] = ()) -> None:
        """Sets the rate, in [0, 1), and the names of dimensions along which the mask is constant.

        With `length`, a feature of a row is dropped at all positions or at none.

        Raises:
          ValueError: the rate is out of range.
        """
        Limits(min=0, below=1).check("the rate of dropout", rate)
        self._rate = rate
        self._broadcast_dims = tuple(broadcast_dims)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        """In training, drops elements of `x` and scales up the rest; otherwise returns `x`."""
        if not self._rate or not training:
            return x
        names = x.shape.dimension_names
        for name in self._broadcast_dims:
            if name not in names:
                raise ValueError(
                    f"dropout is to be the same along {name!r}, and {x.name!r} {x.shape} has no"
                    " such dimension."
                )
        dims = [d for d in x.shape.dims if d.name not in self._broadcast_dims]
        return mtf.dropout(x, is_training=True, rate=self._rate, noise_shape=mtf.Shape(dims))
