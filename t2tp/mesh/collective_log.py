"""The log of a program's collectives, which reports and plans read."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """One collective operation of a program.

    Attributes:
      kind: name of a registered kind, such as `allreduce`; see `t2tp.mesh.collective_kinds`.
      axes: names of the mesh axes that it runs over.
      group_size: number of processors in a group.
      bytes: size of each processor's input.
      name: TensorFlow's name scope where it was emitted.
      operation: the mtf operation that needs it; empty for an output of the program.
      sums: names of the deferred sums that it reduces, or of the operations whose variables it
        gathers.
      times: number of times that a step runs it. A loop whose length is unknown before it runs
        counts as one iteration.
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
    """Adds collectives up: (kind, axes) -> (count, input bytes of each processor)."""
    totals: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for c in collectives:
        count, size = totals.get((c.kind, c.axes), (0, 0))
        totals[c.kind, c.axes] = count + c.times, size + c.bytes * c.times
    return totals
