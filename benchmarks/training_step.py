"""A training step of one language model, in t2tp and in what else its users might take.

    python benchmarks/training_step.py [--turns=5] [--steps=4] [MESH ...]

For each mesh, such as 1x1 or 2x4 (devices that split the batch x devices that split the weights),
all peers that can run on it take turns; the table gives medians, and t2tp's time as a share of each
peer's.
"""

from __future__ import annotations

import argparse

from turns import Peer, take_turns


def peers_for(mesh: str, case: str, dtype: str) -> list[Peer]:
    """Who competes on a mesh."""
    data, model = mesh.split("x")
    common = [f"--case={case}", f"--dtype={dtype}", f"--data={data}", f"--model={model}"]
    peers = [
        Peer("t2tp", "ours", common),
        Peer("mesh-tensorflow", "mtf_graph", [*common, "--engine=placement"]),
        Peer("its graph, our engine", "mtf_graph", [*common, "--engine=t2tp"]),
        Peer("JAX, jit" if mesh == "1x1" else "JAX, GSPMD", "jax_gspmd", common, "jax"),
    ]
    if mesh == "1x1":
        peers += [
            Peer("t2tp, XLA", "ours", [*common, "--xla"]),
            Peer("plain TensorFlow", "plain_tf", common),
            Peer("plain TensorFlow, XLA", "plain_tf", [*common, "--xla"]),
        ]
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("meshes", nargs="*", default=["1x1", "2x4"], metavar="MESH")
    parser.add_argument("--case", default="design")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    print(f"{'mesh':6} {'':24} {'ms':>7} {'spread':>7} {'t2tp / it':>10}")
    for mesh in args.meshes:
        peers, absent = take_turns(peers_for(mesh, args.case, args.dtype), args.turns, args.steps)
        ours = next(peer for peer in peers if peer.name == "t2tp")
        for peer in peers:
            ratio = ours.median / peer.median
            figures = f"{1e3 * peer.median:7.0f} {peer.spread:7.0%} {ratio:10.2f}"
            print(f"{mesh:6} {peer.name:24} {figures}", flush=True)
        for name, reason in absent.items():
            print(f"{mesh:6} {name:24} absent: {reason}")


if __name__ == "__main__":
    main()
