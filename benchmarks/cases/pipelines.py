"""A training step whose layers are in stages, compared with the pipelines of other frameworks."""

from __future__ import annotations

from language_model import SIZES
from suite.turns import Peer

from cases.group import Group, matmul

MICROBATCHES = 8
PROCESSES = (2, 4)
# t2tp's schedules, and the number of chunks of layers in each stage.
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1))


def groups(size: str) -> list[Group]:
    """Returns a group for each schedule and number of processes."""
    size = "deep" if size == "design" else "tiny_deep"
    return [
        Group(f"{schedule}, {count} stages", peers, SIZES[size].matmul_flops(), "FLOP")
        for count in PROCESSES
        for schedule, chunks in SCHEDULES
        for peers in [_peers(schedule, chunks, count, size)]
    ]


def _peers(schedule: str, chunks: int, count: int, size: str) -> list[Peer]:
    arguments = [
        f"--size={size}",
        f"--stages={count}",
        f"--chunks={chunks}",
        f"--microbatches={MICROBATCHES}",
    ]
    in_processes = [*arguments, f"--processes={count}", f"--schedule={schedule}"]
    found = [
        Peer("t2tp", "ours", in_processes),
        Peer("PyTorch, distributed.pipelining", "torch_pipeline", in_processes, "torch"),
    ]
    if schedule == "gpipe":
        found.append(Peer("JAX, shard_map", "jax_pipeline", arguments, "jax"))
    return [*found, matmul()]
