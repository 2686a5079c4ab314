"""A training step whose state is sharded over the processes, compared with other frameworks."""

from __future__ import annotations

from language_model import SIZES
from suite.turns import Peer

from cases.group import Group, matmul

PROCESSES = (2, 4)
WHOLE = "t2tp, nothing sharded"
AS_IN_JAX = "t2tp, stage 3, one process"


def groups(size: str) -> list[Group]:
    """Returns a group for each kind of sharded state and number of processes.

    In a last group, the model is larger, so that differences in memory are clearer.
    """
    found = [
        Group(f"{what}, {count} processes", peers(count, size), SIZES[size].matmul_flops(), "FLOP")
        for count in PROCESSES
        for what, peers in (("nothing", _nothing), ("optimizer", _optimizer), ("weights", _weights))
    ]
    if size == "design":
        flops = SIZES["wide"].matmul_flops()
        found.append(Group("weights, 2 processes, wide", _weights(2, "wide"), flops, "FLOP"))
    return found


def _arguments(count: int, size: str) -> list[str]:
    return [f"--size={size}", f"--data={count}"]


def _ours(name: str, stage: int, count: int, size: str, processes: int | None = None) -> Peer:
    split = [f"--processes={processes or count}", f"--zero_stage={stage}"]
    return Peer(name, "ours", [*_arguments(count, size), *split])


def _torch(name: str, count: int, size: str, *more: str) -> Peer:
    arguments = [*_arguments(count, size), f"--processes={count}", *more]
    return Peer(name, "torch_lm", arguments, "torch")


def _nothing(count: int, size: str) -> list[Peer]:
    return [_ours("t2tp", 0, count, size), _torch("PyTorch, DDP", count, size), matmul()]


def _optimizer(count: int, size: str) -> list[Peer]:
    name = "PyTorch, DDP and ZeroRedundancyOptimizer"
    return [
        _ours("t2tp, stage 1", 1, count, size),
        _ours(WHOLE, 0, count, size),
        _torch(name, count, size, "--sharded=optimizer"),
        _ours("t2tp, stage 1, one process", 1, count, size, processes=1),
        matmul(),
    ]


def _weights(count: int, size: str) -> list[Peer]:
    return [
        _ours("t2tp, stage 3", 3, count, size),
        _ours(WHOLE, 0, count, size),
        _torch("PyTorch, fully_shard", count, size, "--sharded=weights"),
        _ours(AS_IN_JAX, 3, count, size, processes=1),
        Peer("JAX, NamedSharding", "jax_gspmd", [*_arguments(count, size), "--sharded"], "jax"),
        matmul(),
    ]
