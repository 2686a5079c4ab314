"""A training step of single layers: a mixture of experts, and a convolution block."""

from __future__ import annotations

from layer_sizes import CONVOLUTIONS, EXPERTS
from suite.turns import Peer

from cases.group import Group, matmul

# Devices that split the batch (and the experts) x devices that split d_ff, or the images' height.
MESHES = ("1x1", "2x2")


def experts(size: str) -> list[Group]:
    """Returns a group for each mesh that trains a mixture of experts."""
    return [_group(mesh, size, EXPERTS[size].matmul_flops(), _experts) for mesh in MESHES]


def convolutions(size: str) -> list[Group]:
    """Returns a group for each mesh that trains a convolution block."""
    return [_group(mesh, size, CONVOLUTIONS[size].matmul_flops(), _convolutions) for mesh in MESHES]


def _group(mesh: str, size: str, flops: int, peers) -> Group:
    data, model = mesh.split("x")
    arguments = [f"--size={size}", f"--data={data}", f"--model={model}"]
    return Group(mesh, [*peers(arguments, mesh == "1x1"), matmul()], flops, "FLOP")


def _experts(arguments: list[str], on_one_device: bool) -> list[Peer]:
    peers = [
        Peer("t2tp", "experts_ours", arguments),
        Peer("mesh-tensorflow", "experts_mtf", arguments),
    ]
    if on_one_device:
        peers += [
            Peer("JAX, jit", "experts_jax", arguments, "jax"),
            Peer("PyTorch, eager", "experts_torch", arguments, "torch"),
        ]
    else:
        peers.append(Peer("t2tp, one device", "experts_ours", arguments[:1]))
    return peers


def _convolutions(arguments: list[str], on_one_device: bool) -> list[Peer]:
    peers = [Peer("t2tp", "convolution_ours", arguments)]
    if not on_one_device:
        return [*peers, Peer("t2tp, one device", "convolution_ours", arguments[:1])]
    return [
        *peers,
        Peer("t2tp, XLA", "convolution_ours", [*arguments, "--xla"]),
        Peer("plain TensorFlow", "convolution_tf", arguments),
        Peer("plain TensorFlow, XLA", "convolution_tf", [*arguments, "--xla"]),
        Peer("JAX, jit", "convolution_jax", arguments, "jax"),
        Peer("PyTorch, eager", "convolution_torch", arguments, "torch"),
        Peer("PyTorch, compiled", "convolution_torch", [*arguments, "--compile"], "torch"),
    ]
