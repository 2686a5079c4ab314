"""Compares the copies of a slice on several processors: they must be equal, bit for bit.

The copies are equal at first, and every processor updates its copy with the same gradients. So
copies differ only if a device computes wrongly, or the engine gives processors different gradients.
Each device computes one checksum per slice, so that little data is transferred.
"""

import base64
import functools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from t2tp.processes.cluster import Cluster
from t2tp.program.variables import Variables

# Number of elements to sum up at a time, so that large slices need no more temporary memory than
# small ones.
CHUNK = 1 << 20
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}


@dataclass(frozen=True)
class ReplicaMismatch:
    """Copies of a slice that differ.

    Attributes:
      name: name of the variable or the tensor.
      groups: the processors that should hold the same slice, grouped by equal values, the largest
        group first.
      kind: `variable`, `activation` or `gradient`.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    kind: str = "variable"

    @property
    def has_majority(self) -> bool:
        """Whether one group is larger than each other group; the other copies are then wrong."""
        first, second = map(len, self.groups[:2])
        return first > second

    def describe(self, cluster: Cluster) -> str:
        """Returns the end of a sentence: `variable 'w' differs on processor 3 (...) from ...`."""
        first, *others = self.groups
        if not self.has_majority:
            names = " and ".join(_name(group, cluster) for group in self.groups)
            return f"{self.kind} {self.name!r} differs between {names}"
        wrong = tuple(sorted(pnum for group in others for pnum in group))
        names = f"{_name(wrong, cluster)} from {_name(first, cluster)}"
        return f"{self.kind} {self.name!r} differs on {names}"


class ReplicaCheck:
    """Compares the copies of each slice, for all variables of a run."""

    def __init__(self, variables: Variables, chunk: int = CHUNK) -> None:
        """Finds the processors that have the same slice of a variable.

        Variables that are created later are not compared. `chunk` elements are summed at a time.
        """
        self._cluster = variables.cluster
        holders = [(variable, copies(variable.pnums, variable.begin)) for variable in variables]
        self._compared = [(variable, groups) for variable, groups in holders if groups]
        self._run = tf.function(functools.partial(checksums, chunk=chunk), autograph=False)

    def mismatches(self) -> list[ReplicaMismatch]:
        """Compares the copies; with several processes, all of them call this at the same step.

        Returns:
          The slices whose copies differ; all processes get the same list.
        """
        if not self._compared:
            return []
        running = [self._checksums(pnum) for pnum in self._cluster.local_pnums]
        local = np.stack([checksums.numpy() for checksums in running])
        encoded = base64.b64encode(local.tobytes()).decode()
        parts = self._cluster.process_allgather("replicas", encoded)
        sums = np.frombuffer(b"".join(map(base64.b64decode, parts)), np.int64)
        sums = sums.reshape(-1, len(self._compared))
        found = []
        for index, (variable, groups) in enumerate(self._compared):
            for pnums in groups:
                equal = equal_groups(pnums, sums[list(pnums), index])
                if len(equal) > 1:
                    found.append(ReplicaMismatch(variable.spec.name, equal))
        return found

    def _checksums(self, pnum: int) -> tf.Tensor:
        """Returns the checksum of each compared slice of a processor, computed on its device.

        For a variable of another pipeline stage, returns 0.
        """
        slices = [
            variable.slice_of(pnum) if pnum in variable.pnums else None
            for variable, _ in self._compared
        ]
        with tf.device(self._cluster.devices[pnum]):
            return self._run(slices, tf.constant(1, tf.int64))


def copies(pnums: Iterable[int], slice_of: Callable[[int], Hashable]) -> list[list[int]]:
    """Returns the groups of processors that have the same slice, without groups of one processor.

    `slice_of` maps a processor to a key that identifies its slice.
    """
    by_slice: defaultdict[Hashable, list[int]] = defaultdict(list)
    for pnum in pnums:
        by_slice[slice_of(pnum)].append(pnum)
    return [equal for equal in by_slice.values() if len(equal) > 1]


def equal_groups(pnums: Sequence[int], sums: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Groups processors by equal checksums, the largest group first."""
    by_sum: defaultdict[int, list[int]] = defaultdict(list)
    for pnum, value in zip(pnums, sums.tolist(), strict=True):
        by_sum[value].append(pnum)
    return tuple(map(tuple, sorted(by_sum.values(), key=len, reverse=True)))


def checksums(
    slices: Sequence[tf.Variable | tf.Tensor | None], one: tf.Tensor, chunk: int = CHUNK
) -> tf.Tensor:
    """Computes checksums one after another, so that only one at a time needs temporary memory.

    Args:
      slices: slices of a processor; None counts as 0.
      one: 1, but not a constant. From a constant, TensorFlow would compute the odd numbers of all
        elements (see `_checksum`) in advance and keep them in memory.
      chunk: number of elements to sum at a time.

    Returns:
      int64 [slices].
    """
    sums: list[tf.Tensor] = []
    for part in slices:
        with tf.control_dependencies(sums[-1:]):
            sums.append(0 * one if part is None else _checksum(part, one, chunk))
    return tf.stack(sums)


def _checksum(part: tf.Variable | tf.Tensor, one: tf.Tensor, chunk: int) -> tf.Tensor:
    """Returns the sum, modulo 2^64, of the elements' bits, each times an odd number.

    The odd number depends on the element's position. An odd number times a nonzero difference is
    never 0 modulo 2^64, so a change of one element is always found. Changes of several elements are
    very unlikely to cancel.
    """
    value = tf.reshape(tf.cast(part, tf.uint8) if part.dtype == tf.bool else part, [-1])
    size = part.shape.num_elements()

    def add(begin: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = value[begin : begin + chunk]
        bits = tf.cast(tf.bitcast(part, _INTEGERS[value.dtype.size]), tf.int64)
        odd = one + 2 * tf.cast(begin, tf.int64)
        weights = tf.range(odd, odd + 2 * tf.size(bits, tf.int64), 2)
        return begin + chunk, total + tf.reduce_sum(bits * weights)

    start = (tf.constant(0), tf.constant(0, tf.int64))
    if size <= chunk:
        return add(*start)[1]
    return tf.while_loop(lambda begin, _: begin < size, add, start, parallel_iterations=1)[1]


def _name(pnums: Sequence[int], cluster: Cluster) -> str:
    """Formats processors with their devices."""
    devices = ", ".join(cluster.devices[pnum] for pnum in pnums)
    return f"processor{'s' if len(pnums) > 1 else ''} {', '.join(map(str, pnums))} ({devices})"
