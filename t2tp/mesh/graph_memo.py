"""A memo of values that are computed once in each TensorFlow graph.

The body of a loop is a separate graph. Its tensors cannot be used in another graph, so the memo has
the graph in its keys.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")


class GraphMemo:
    """Values by TensorFlow graph and key."""

    def __init__(self) -> None:
        self._values: dict[tuple[tf.Graph, Hashable], Any] = {}

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the value of a key in the current graph, computed when it is first needed.

        `key` must contain everything that the value depends on.
        """
        where = (tf.compat.v1.get_default_graph(), key)
        if where not in self._values:
            self._values[where] = make()
        return self._values[where]
