"""What a training costs before it gets going: the first step, and tracing for a large mesh."""

from __future__ import annotations

from suite.turns import Peer

from cases.group import Group

# A second axis adds its sums to the graph, so meshes with the same number of axes are compared.
ONE_AXIS = ("1x2", "1x8", "1x64", "1x128")
TWO_AXES = ("2x2", "2x4", "8x8", "8x16")
# A first step of 64 virtual devices takes minutes of two cores, most of them TensorFlow's.
STEPPED = ("1x2", "2x2", "2x4")


def start_up(size: str) -> list[Group]:
    """From the command to the end of the first step, each time afresh; files are in memory."""
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
    """t2tp's tracing, in seconds of one core, and its first step, against the size of the mesh."""
    largest = 128 if size == "design" else 2
    only_trace = ["--only_trace"]
    return [
        Group("trace, one axis", _traced(ONE_AXIS, largest, "trace", only_trace)),
        Group("trace, two axes", _traced(TWO_AXES, 2 * largest, "trace", only_trace)),
        Group("first step", _traced(STEPPED, largest, "first_step", [])),
    ]


def _traced(meshes: tuple[str, ...], largest: int, measures: str, more: list[str]) -> list[Peer]:
    """Returns the meshes, the smallest first: the others are compared with it."""
    peers = []
    for mesh in meshes:
        data, model = map(int, mesh.split("x"))
        if data * model <= largest:
            arguments = ["--size=meshes", f"--data={data}", f"--model={model}", *more]
            peers.append(Peer(f"t2tp on {mesh}", "ours", arguments, measures=measures))
    return peers
