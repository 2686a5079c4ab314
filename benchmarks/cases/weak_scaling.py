"""Training steps of more processes with a larger batch: t2tp and DistributedDataParallel.

The number of cores stays the same, so tokens/s are constant at best.
"""

from __future__ import annotations

import dataclasses

from language_model import SIZES
from suite.turns import Peer

from cases.group import Group, matmul

PROCESSES = (1, 2, 4)
ROWS_EACH = 4


def groups(size: str) -> list[Group]:
    """Returns a group for each number of processes."""
    return [_group(count, size) for count in PROCESSES]


def _group(count: int, size: str) -> Group:
    batch = ROWS_EACH * count
    arguments = [f"--size={size}", f"--batch={batch}", f"--data={count}", f"--processes={count}"]
    peers = [
        Peer("t2tp", "ours", arguments),
        Peer("PyTorch, DDP" if count > 1 else "PyTorch", "torch_lm", arguments, "torch"),
        matmul(),
    ]
    work = dataclasses.replace(SIZES[size], batch=batch).matmul_flops()
    return Group(f"{count} processes" if count > 1 else "1 process", peers, work, "FLOP")
