"""Our operations match mesh-tensorflow's operations of the same names, also at the edges.

The test calls mesh-tensorflow's operations on its own engine, and ours on our engine.
docs/porting.md lists the intended differences.
"""

import numpy as np
import pytest
import tensorflow as tf

from t2tp import mtf, upstream
from tests.lowering import oracle

A, B, C = mtf.Dimension("a", 4), mtf.Dimension("b", 6), mtf.Dimension("c", 2)
RNG = np.random.default_rng(0)
X = np.round(RNG.normal(size=(4, 6)) * 2).astype(np.float32)  # with ties and zeros
VALUES = {
    "x": ([A, B], X),
    "y": ([B], np.array([-3.0, -1.0, 0.5, 1.0, 2.0, 4.0], np.float32)),
    "n": ([A, B], RNG.integers(-5, 6, (4, 6)).astype(np.int32)),
    "p": ([A, B], X > 0),
    "h": ([A, B], X.astype(np.float16)),
    "d": ([A, B], X.astype(np.float64)),
    "z": ([A, B], (X + 1j * X.T.reshape(4, 6)).astype(np.complex64)),
    "ids": ([A, C], np.array([[-1, 0], [5, 6], [3, 3], [-7, 2**31 - 1]], np.int32)),
    "long": ([C], np.array([-(2**40), 2], np.int64)),
    "rows": ([A], np.array([0, 5, 6, -1], np.int32)),
    "small": ([C], np.array([0, 255], np.uint8)),
}
FEATURES = {name: (mtf.Shape(dims), np.asarray(value)) for name, (dims, value) in VALUES.items()}
K1, K3, K5 = (mtf.Dimension("k", size) for size in (1, 3, 5))


def calls(m, f):
    """Returns name -> result of operations that `t2tp.mtf` replaces; `m` has the operations."""
    x, y, n, p, h, d, z = (f[name] for name in "xynphdz")
    ids, long, rows, small = (f[name] for name in ("ids", "long", "rows", "small"))
    out = {}
    for name, table in (("x", x), ("n", n), ("p", p), ("h", h), ("d", d), ("z", z)):
        out |= {
            f"gather_{name}": m.gather(table, rows, B),
            f"gather_{name}_apart": m.gather(table, long, B),
            f"gather_{name}_constant": m.gather(table, -1, B),
            f"gather_{name}_tuple": m.gather(table, 5, ("b", 6), output_shape=[A]),
            f"cast_{name}": m.cast(table, tf.float32 if name in "np" else tf.float64)
            if name != "z"
            else m.cast(table, tf.complex128),
        }
    out |= {
        "gather_batched": m.gather(x, ids, B),
        "gather_ordered": m.gather(x, ids, B, output_shape=mtf.Shape([C, A])),
        "gather_small": m.gather(x, small, A),
        "cast_to_int": m.cast(x * 0.75, tf.int32),
        "cast_to_bool": m.cast(x, tf.bool),
    }
    for name, t in (("x", x), ("n", n), ("d", d)):
        out |= {
            f"cumsum_{name}": m.cumsum(t, B),
            f"cumsum_{name}_exclusive": m.cumsum(t, A, exclusive=True),
            f"floordiv_{name}": m.floordiv(t, 3),
            f"floordiv_by_{name}": m.floordiv(7, t + 20),
            f"mod_{name}": m.mod(t, -3),
            f"mod_{name}_by_tensor": m.mod(t, m.cast(y * 2.0 + 0.5, t.dtype), [B, A]),
            f"maximum_{name}": m.maximum(t, 1),
            f"minimum_{name}": m.minimum(m.cast(y, t.dtype), t, output_shape=[B, A]),
            f"max_{name}": m.reduce_max(t),
            f"max_{name}_along": m.reduce_max(t, reduced_dim=B),
            f"max_{name}_tuple": m.reduce_max(t, reduced_dim=("a", 4)),
            f"min_{name}": m.reduce_min(t, output_shape=[B]),
            f"min_{name}_same": m.reduce_min(t, output_shape=[A, B]),
            f"relu_{name}": m.relu(t),
            f"add_{name}": m.add(t, 2) + m.add(t, m.cast(y, t.dtype), output_shape=[A, B]),
            f"multiply_{name}": m.multiply(t, 3) - m.multiply(m.cast(y, t.dtype), t, [A, B]),
            f"einsum_{name}": m.einsum([t, t], reduced_dims=[B]),
            f"einsum_{name}_default": m.einsum([t, m.cast(y, t.dtype)]),
            f"einsum_{name}_broadcast": m.einsum([t], output_shape=[C, B, A]),
            f"matmul_{name}": m.matmul(t, m.cast(y, t.dtype), output_shape=[A]),
            f"where_{name}": m.where(p, t, t * 2),
            f"where_{name}_number": m.where(p, t, 5),
            f"where_{name}_broadcast": m.where(m.greater(y, 0), t, -t, output_shape=[B, A]),
            f"slicewise_{name}": m.slicewise(tf.abs, [t], splittable_dims=[A, B]),
            f"unstack_{name}": m.unstack(
                m.rename_dimension(t, "a", "whole"), mtf.Dimension("whole", 4)
            )[2],
        }
        for k in (K1, K3, K5):
            values, indices = m.top_k(t, B, k)
            out |= {f"top_{k.size}_{name}": values, f"top_{k.size}_{name}_indices": indices}
    for name, t in (("x", x), ("d", d), ("x_far", x * 100.0)):
        out |= {
            f"softmax_{name}": m.softmax(t, B),
            f"softmax_{name}_extra": m.softmax(t, A, extra_logit=0.0),
            f"log_softmax_{name}": m.log_softmax(t, ("b", 6)),
            f"logsumexp_{name}": m.reduce_logsumexp(t, B, extra_logit=1.0),
            f"mean_{name}": m.reduce_mean(t, reduced_dim=A),
            f"mean_{name}_all": m.reduce_mean(t),
            f"mean_{name}_same": m.reduce_mean(t, output_shape=[A, B]),
            f"dropout_{name}_off": m.dropout(t, False, rate=0.5),
            f"dropout_{name}_off_whatever_the_rate": m.dropout(t, False, keep_prob=0.0),
            f"dropout_{name}_none": m.dropout(t, True, keep_prob=1.0),
        }
    loop = m.while_loop(
        lambda i, t: m.less(i, 3),
        lambda i, t: [i + 1, t * 2.0],
        [m.constant(x.mesh, 0, dtype=tf.int32), x],
    )
    out |= {"loop_count": loop[0], "loop_value": loop[1]}
    # tests/lowering/test_any_layout.py tests the gradients of other operations.
    losses = {"relu": m.relu(x) * y, "cast": m.cast(m.cast(x, tf.float64) * 2.0, tf.float32) * y}
    for name, value in losses.items():
        grads = m.gradients([m.reduce_sum(value)], [x, y])
        out |= {f"d_{name}_{i}": grad for i, grad in enumerate(grads) if grad is not None}
    return out


@pytest.mark.parametrize(("mesh_shape", "layout"), [("", ""), ("m:2;n:2", "a:m;b:n")])
def test_our_operations_give_what_mesh_tensorflows_give(mesh_shape, layout, theirs):
    ours = oracle.run_ours(lambda mesh, f: calls(mtf, f), FEATURES, mesh_shape, layout)
    assert set(ours) == set(theirs)
    wrong = []
    for name, wanted in theirs.items():
        value = ours[name]
        same = value.dtype == wanted.dtype and value.shape == wanted.shape
        tolerance = 1e-2 if wanted.dtype == np.float16 else 1e-5
        if not same or not np.allclose(value, wanted, rtol=tolerance, atol=tolerance):
            wrong.append(f"{name}: {value.dtype} {value} and not {wanted.dtype} {wanted}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def theirs():
    return oracle.run(lambda mesh, f: calls(upstream, f), FEATURES)
