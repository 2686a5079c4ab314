"""A dense layer that keeps the size of its dimension."""

from t2tp import mtf
from t2tp.layers import variables


class Dense:
    """A dense layer on the last dimension; variables `kernel` and `bias` of the current scope."""

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        """Computes [..., d] -> [..., d]; a layout that splits d splits the rows of the kernel."""
        dim = x.shape.dims[-1]
        to = mtf.Dimension(f"{dim.name}_out", dim.size)
        matrix = variables.matrix(x.mesh, "kernel", [dim], [to], dim.size**-0.5, x.dtype)
        y = mtf.einsum([x, matrix], output_shape=x.shape - dim + to)
        bias = variables.bias(x.mesh, "bias", [to], x.dtype)
        y = mtf.add(y, bias, output_shape=y.shape)
        return mtf.rename_dimension(y, to.name, dim.name)
