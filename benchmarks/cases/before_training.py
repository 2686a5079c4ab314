"""The time before training makes progress: the first step, and tracing for a large mesh."""

from __future__ import annotations

from suite.turns import Peer

from cases.group import Group

# Only meshes with the same number of axes are compared, because each axis adds sums to the graph.
ONE_AXIS = ("1x2", "1x8", "1x64", "1x128")
TWO_AXES = ("2x2", "2x4", "8x8", "8x16")
# With 64 virtual devices, a first step takes minutes on two cores, mostly inside TensorFlow.
STEPPED = ("1x2", "2x2", "2x4")


def start_up(size: str) -> list[Group]:
    """Returns peers whose first step is timed, from the command to the step's end.

    Each turn starts a new process, whose files are already in the page cache.
    """
    arguments = [f"--size={size}"]
    programs = [
        ("t2tp", "ours", [], ""),
        ("mesh-tensorflow", "mtf_graph", ["--engine=placement"], ""),
        ("plain TensorFlow", "plain_tf", [], ""),
        ("plain TensorFlow, XLA", "plain_tf", ["--xla"], ""),
        ("Keras 3 on TensorFlow", "keras_lm", [], ""),
        ("JAX, jit", "jax_gspmd", [], "jax"),
        ("PyTorch, eager", "torch_lm", [], "torch"),
        ("PyTorch, compiled", "torch_lm", ["--compile"], "torch"),
    ]
    peers = [
        Peer(name, program, [*arguments, *more], environment, "start_up")
        for name, program, more, environment in programs
    ]
    return [Group("1x1", peers)]


def tracing(size: str) -> list[Group]:
    """Returns groups of meshes, to compare tracing (seconds of one core) and the first step."""
    largest = 128 if size == "design" else 2
    only_trace = ["--only_trace"]
    return [
        Group("trace, one axis", _traced(ONE_AXIS, largest, "trace", only_trace)),
        Group("trace, two axes", _traced(TWO_AXES, 2 * largest, "trace", only_trace)),
        Group("first step", _traced(STEPPED, largest, "first_step", [])),
    ]


def _traced(meshes: tuple[str, ...], largest: int, measures: str, more: list[str]) -> list[Peer]:
    """Returns a peer for each mesh; the first and smallest one is compared with all others."""
    peers = []
    for mesh in meshes:
        data, model = map(int, mesh.split("x"))
        if data * model <= largest:
            arguments = ["--size=meshes", f"--data={data}", f"--model={model}", *more]
            peers.append(Peer(f"t2tp on {mesh}", "ours", arguments, measures=measures))
    return peers
