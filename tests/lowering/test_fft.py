"""Runs complex-valued programs, as grid simulations with mesh-tensorflow have.

A three-dimensional Fourier transform of a split volume, and sums over the halos of its blocks.
"""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf
from tests.lowering import oracle

SIZES = {"x": 4, "y": 8, "z": 4}
NX, NY, NZ = (mtf.Dimension(f"n{name}", size) for name, size in SIZES.items())
KX, KY, KZ = (mtf.Dimension(f"k{name}", size) for name, size in SIZES.items())
RNG = np.random.default_rng(0)
FIELD = RNG.normal(size=(4, 8, 4)).astype(np.float32)
# The modes have the order [ky, kz, kx].
KERNEL = (RNG.normal(size=(8, 4, 4)) + 1j * RNG.normal(size=(8, 4, 4))).astype(np.complex64)


class TransformOperation(mtf.Operation):
    """Transforms a field [nx, ny, nz] to its modes [ky, kz, kx], or back.

    Processors exchange slices, so that the transformed dimension is never split.
    """

    def __init__(self, x: mtf.Tensor, output_dims: list[mtf.Dimension]) -> None:
        super().__init__([x], name="transform")
        self._is_inverse = output_dims[0] == NX
        self._outputs = [mtf.Tensor(self, mtf.Shape(output_dims), x.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        x = lowering.tensors[self.inputs[0]]
        first, second, last = map(
            mesh_impl.tensor_dimension_to_mesh_axis, self.inputs[0].shape.dims
        )
        assert last is None
        if self._is_inverse:
            transform, order, concat_axis, axes = tf.signal.ifft, [1, 2, 0], -3, (first, second)
        else:
            transform, order, concat_axis, axes = tf.signal.fft, [2, 0, 1], -2, (second, first)
        x = mesh_impl.slicewise(transform, x)
        for axis in axes:
            if axis is not None:
                x = mesh_impl.alltoall(x, axis, -1, concat_axis)
            x = mesh_impl.slicewise(lambda t: transform(tf.transpose(t, order)), x)
        lowering.set_tensor_lowering(self.outputs[0], x)


LAYOUTS = [
    ("", "", False),
    ("", "", True),
    ("a:2", "nx:a;ky:a", False),
    ("a:4", "ny:a;kz:a", False),
    ("b:4;a:2", "nx:a;ny:b;ky:a;kz:b", False),
]


@pytest.mark.parametrize(("mesh_shape", "layout", "xla"), LAYOUTS)
def test_any_layout_transforms_a_volume_and_sums_over_it(mesh_shape, layout, xla):
    def step(mesh, features):
        field = mtf.cast(features["field"], tf.complex64)
        modes = TransformOperation(field, [KY, KZ, KX]).outputs[0]
        kernel = mtf.import_tf_tensor(mesh, KERNEL, modes.shape)
        filtered = TransformOperation(modes * kernel, [NX, NY, NZ]).outputs[0]
        return {
            "modes": modes,
            "filtered": filtered,
            "along_z": mtf.reduce_sum(modes, output_shape=mtf.Shape([KZ])),
            "product": mtf.einsum([modes, kernel], output_shape=[]),
            "first": mtf.gather(modes, 1, KY),
        }

    program = t2tp.Program(
        step,
        {"field": t2tp.Feature(mtf.Shape([NX, NY, NZ]))},
        layout=t2tp.Layout(mesh_shape, layout),
        xla=xla,
    )
    values = program({"field": FIELD})
    modes = np.fft.fftn(FIELD.astype(np.float64)).transpose(1, 2, 0)
    assert_close(values["modes"], modes)
    assert_close(values["filtered"], np.fft.ifftn((modes * KERNEL).transpose(2, 0, 1)))
    assert_close(values["along_z"], modes.sum((0, 2)))
    assert_close(values["product"], (modes * KERNEL).sum())
    assert_close(values["first"], modes[1])


@pytest.mark.parametrize("dtype", [tf.float32, tf.complex64, tf.complex128])
@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("a:4", "bx:a"), ("a:2", "bx:a")])
def test_what_blocks_have_in_their_halos_is_added_to_their_neighbours(mesh_shape, layout, dtype):
    blocks, size, halo = mtf.Dimension("bx", 4), mtf.Dimension("sx", 8), 2
    x = RNG.normal(size=(4, 8, 3)) + 1j * RNG.normal(size=(4, 8, 3))
    x = (x if dtype.is_complex else x.real).astype(dtype.as_numpy_dtype)

    def step(mesh, features):
        padded = features["padded"]
        low = mtf.slice(padded, 0, halo, "sx")
        high = mtf.slice(padded, size.size - halo, halo, "sx")
        inner = mtf.slice(padded, halo, size.size - 2 * halo, "sx")
        rest = size.size - 3 * halo
        inner += mtf.pad(mtf.shift(high, 1, blocks, wrap=True), [0, rest], "sx")
        inner += mtf.pad(mtf.shift(low, -1, blocks, wrap=True), [rest, 0], "sx")
        return {"y": inner, "again": mtf.halo_exchange(inner, blocks, inner.shape[1], 1, wrap=True)}

    shape = mtf.Shape([blocks, size, mtf.Dimension("c", 3)])
    values = oracle.run_ours(step, {"padded": (shape, x)}, mesh_shape, layout)
    wanted = np.zeros((16, 3), x.dtype)
    for block in range(4):
        for place in range(8):
            wanted[(block * 4 + place - halo) % 16] += x[block, place]
    assert_close(values["y"].reshape(16, 3), wanted)
    around = np.stack([wanted[np.arange(block * 4 - 1, block * 4 + 5) % 16] for block in range(4)])
    assert_close(values["again"], around)


def assert_close(ours, wanted):
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-6 * scale)
