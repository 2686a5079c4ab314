"""The interface through which an operation reads its inputs and sets its outputs.

`Operation.lower(lowering)` reads the slices of the operation's inputs from a `Lowering`, and sets
the slice of each output:

```python
def lower(self, lowering):  # y = tanh(x)
    lowering.set_slice(self.outputs[0], tf.tanh(lowering.slice(self.inputs[0])))
```

An operation that sums over a split dimension calls `set_partial_sum` instead. The all-reduce is
then deferred (`t2tp.lowering.deferred_sums`), and `slice` completes it.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tensorflow as tf

from t2tp import upstream

if TYPE_CHECKING:
    from t2tp.lowering.lowering import GraphLowering

# `lowering.py` imports the rules of operations. The rules and the operations import only this name
# of its class, which avoids circular imports.
Lowering: TypeAlias = "GraphLowering"

# The mesh axes along which a slice is in head-tail order: see `t2tp.lowering.head_tail`.
Order: TypeAlias = "frozenset[int]"


class Relayout(NamedTuple):
    """A processor's slice of a tensor, and the shape to convert the tensor to.

    Attributes:
      x: the slice.
      name: name of the operation that converts the slice.
      old_shape: global shape of the tensor of which `x` is a slice.
      new_shape: global shape of the new tensor.
    """

    x: tf.Tensor
    name: str
    old_shape: upstream.Shape
    new_shape: upstream.Shape
