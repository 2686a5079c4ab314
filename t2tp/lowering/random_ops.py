"""mesh-tensorflow's random operations, computed with the mesh-independent generator."""

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering import random
from t2tp.lowering.context import Lowering


def lower_random(op: upstream.RandomOperation, lowering: Lowering) -> None:
    """Generates uniform and normal random tensors with the counter-based generator."""
    output = op.outputs[0]
    kwargs = {k: v for k, v in op._kwargs.items() if k not in ("dtype", "name", "seed")}
    bits = lowering.random_bits(op.name, output.shape)
    if op._tf_fn is tf.compat.v1.random.uniform:
        low, high = kwargs.pop("minval", 0), kwargs.pop("maxval", None)
        if output.dtype.is_integer:
            if high is None:
                raise ValueError(f"{op.name}: random integers need a maxval.")
            if not 0 < high - low < 1 << 32:
                raise ValueError(
                    f"{op.name}: random integers from {low} and below {high}: the span must be"
                    " 1 to 2**32 - 1."
                )
            span = tf.constant(high - low, tf.uint32)
            value = tf.cast(low, output.dtype) + tf.cast(bits % span, output.dtype)
        else:
            high = 1.0 if high is None else high
            value = tf.cast(low + (high - low) * random.uniform(bits), output.dtype)
            # A number just below `high` may be rounded to `high`.
            value = tf.where(value < tf.cast(high, output.dtype), value, tf.cast(low, output.dtype))
    elif op._tf_fn is tf.compat.v1.random.normal:
        value = kwargs.pop("mean", 0.0) + kwargs.pop("stddev", 1.0) * random.normal(bits)
    else:
        raise ValueError(f"{op.name}: {op._tf_fn} has no mesh-independent version.")
    if kwargs:
        raise ValueError(f"{op.name}: unknown arguments {sorted(kwargs)}.")
    lowering.set_slice(output, tf.cast(value, output.dtype))
