"""A training step of one language model, in t2tp and in its alternatives."""

from __future__ import annotations

from language_model import SIZES
from suite.turns import Peer

from cases.group import Group, matmul

# Devices that split the batch x devices that split the weights.
SHORT = (("1x1", "float32"), ("2x4", "float32"))
FULL = tuple(
    (mesh, dtype)
    for dtype in ("float32", "bfloat16")
    for mesh in ("1x1", "2x1", "1x2", "2x2", "2x4", "8x1")
)
WIDE = (("1x1", "float32"), ("2x2", "float32"))


def groups(meshes: tuple[tuple[str, str], ...], size: str) -> list[Group]:
    """Returns a group for each mesh and dtype."""
    return [
        Group(f"{mesh} {dtype}", _peers(mesh, size, dtype), SIZES[size].matmul_flops(), "FLOP")
        for mesh, dtype in meshes
    ]


def _peers(mesh: str, size: str, dtype: str) -> list[Peer]:
    data, model = map(int, mesh.split("x"))
    arguments = [f"--size={size}", f"--dtype={dtype}", f"--data={data}", f"--model={model}"]
    if data * model == 1:
        peers = _on_one_device(arguments)
        if dtype != "float32":
            peers.append(Peer("t2tp, float32", "ours", arguments[:1]))
    else:
        count = data * model
        processes = [*arguments, f"--processes={count}"]
        peers = [
            Peer("t2tp", "ours", arguments),
            Peer("t2tp, one device", "ours", arguments[:2]),
            Peer("JAX, GSPMD", "jax_gspmd", arguments, "jax"),
            Peer("TF DTensor", "tf_dtensor", arguments),
            Peer(f"PyTorch, {count} processes", "torch_lm", processes, "torch"),
        ]
        if count == 2:  # Not for more, because each process compiles its own program.
            compiled = [*processes, "--compile"]
            peers.append(Peer("PyTorch, 2 processes, compiled", "torch_lm", compiled, "torch"))
    if dtype == "float32":  # The program of mesh-tensorflow supports only float32.
        peers += [
            Peer("mesh-tensorflow", "mtf_graph", [*arguments, "--engine=placement"]),
            Peer("its graph, our engine", "mtf_graph", [*arguments, "--engine=t2tp"]),
        ]
    else:
        peers.append(matmul(dtype))
    return [*peers, Peer("least operations", "bare_step", arguments), matmul()]


def _on_one_device(arguments: list[str]) -> list[Peer]:
    return [
        Peer("t2tp", "ours", arguments),
        Peer("t2tp, XLA", "ours", [*arguments, "--xla"]),
        Peer("plain TensorFlow", "plain_tf", arguments),
        Peer("plain TensorFlow, XLA", "plain_tf", [*arguments, "--xla"]),
        Peer("Keras 3 on TensorFlow", "keras_lm", arguments),
        Peer("JAX, jit", "jax_gspmd", arguments, "jax"),
        Peer("PyTorch, eager", "torch_lm", arguments, "torch"),
        Peer("PyTorch, compiled", "torch_lm", [*arguments, "--compile"], "torch"),
    ]
