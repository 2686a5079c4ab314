"""The log of a program's collectives, which reports and plans read."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: `allreduce`, `reducescatter`, `allgather`, `alltoall`, `permute` or `broadcast`.
      axes: names of the mesh axes that it runs over.
      group_size: number of processors in a group.
      bytes: size of the slice that each processor puts in.
      name: TensorFlow's name of the place that asked for it.
      operation: the mtf operation that asked for it; empty for an output of the program.
      sums: names of the tensors that it completes, if it reduces deferred sums; if it gathers
        several variables, of the operations that ask for them.
      times: how often a step runs it; 1 in a loop whose length is known only when it runs.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes: int
    name: str
    operation: str = ""
    sums: tuple[str, ...] = ()
    times: int = 1


def summarize(
    collectives: Sequence[Collective],
) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Adds collectives up: (kind, axes) -> (how many, bytes put in by each processor)."""
    count: Counter = Counter()
    size: Counter = Counter()
    for c in collectives:
        count[c.kind, c.axes] += c.times
        size[c.kind, c.axes] += c.bytes * c.times
    return {key: (count[key], size[key]) for key in count}
