"""Peers that are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from suite.turns import Peer


@dataclass
class Group:
    """Peers that do the same work.

    Attributes:
      name: name of the group, such as "2x4 float32".
      peers: the programs to compare, t2tp first.
      work: work of a step, in `unit`s; a program that does other work reports its own figure.
      unit: FLOP, tokens, examples, bytes; or "" where only time counts.
    """

    name: str
    peers: list[Peer]
    work: float = 0.0
    unit: str = ""


def matmul(dtype: str = "float32") -> Peer:
    """Returns a peer that measures the machine's peak rate."""
    return Peer(f"matmul, {dtype}", "matmul", [f"--dtype={dtype}"])
