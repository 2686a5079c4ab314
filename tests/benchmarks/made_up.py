"""Creates made-up results of benchmarks."""

from suite.results import Measured, Results, Timed

MACHINE = dict(date="2026-01-02 03:04", commit="abc", python="3.11.7", size="design", minutes=1.0)
MACHINE |= dict(cores=2, processor="Abacus", instruction_sets=["beads"], memory_gb=1.0)
MACHINE |= dict(load_before=0.5, turns=3, steps=2)


def timed(name: str, *turns: float, program: str = "peer", **facts: object) -> Timed:
    """Returns a peer's times; in each turn, it made two steps that took equally long."""
    return Timed(name, program, [], [[seconds, seconds] for seconds in turns], facts)


def results(*peers: Timed, absent: dict[str, str] | None = None) -> Results:
    """Returns the results of a case with one group, whose steps have 1e9 operations each."""
    measured = Measured("1x1", "t2tp", 1e9, "FLOP", list(peers), absent or {})
    return Results("training_step", MACHINE, [measured])
