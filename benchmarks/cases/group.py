"""Peers that are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from suite.turns import Peer


@dataclass
class Group:
    """Peers that do the same.

    Attributes:
      name: the member of the case, such as "2x4 float32".
      peers: the competitors, t2tp first.
      work: work of a step, in `unit`s; a program with other work reports it.
      unit: FLOP, tokens, examples, bytes; or "" where only time counts.
    """

    name: str
    peers: list[Peer]
    work: float = 0.0
    unit: str = ""


def matmul(dtype: str = "float32") -> Peer:
    """The machine's own rate."""
    return Peer(f"matmul, {dtype}", "matmul", [f"--dtype={dtype}"])
