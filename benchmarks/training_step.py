"""A training step of one language model, in t2tp and in what else its users might take.

    python benchmarks/training_step.py [--turns=5] [--steps=4] [--case=design] [MESH ...]

For each mesh, such as 1x1 or 2x4 (devices that split the batch x devices that split the weights),
all peers that can run on it take turns, and the machine multiplies matrices among them. The table
gives medians; half the distance of the quartiles; t2tp's time as a share of each peer's; and each
one's share of the matrix products' rate in float32 (the arithmetic is `Sizes.matmul_flops`).
"""

from __future__ import annotations

import argparse

from language_model import CASES
from turns import Peer, take_turns


def peers_for(mesh: str, case: str) -> list[Peer]:
    """Who competes on a mesh."""
    data, model = mesh.split("x")
    sized = [f"--case={case}", f"--data={data}", f"--model={model}"]
    peers = [
        Peer("t2tp", "ours", sized),
        Peer("mesh-tensorflow", "mtf_graph", [*sized, "--engine=placement"]),
        Peer("its graph, our engine", "mtf_graph", [*sized, "--engine=t2tp"]),
        Peer("JAX, jit" if mesh == "1x1" else "JAX, GSPMD", "jax_gspmd", sized, "jax"),
    ]
    if mesh == "1x1":
        peers += [
            Peer("t2tp, XLA", "ours", [*sized, "--xla"]),
            Peer("plain TensorFlow", "plain_tf", sized),
            Peer("plain TensorFlow, XLA", "plain_tf", [*sized, "--xla"]),
            Peer("t2tp, bfloat16", "ours", [*sized, "--dtype=bfloat16"]),
            Peer("plain TF, bfloat16", "plain_tf", [*sized, "--dtype=bfloat16"]),
            Peer("matmul, bfloat16", "matmul", ["--dtype=bfloat16"]),
        ]
    else:
        peers.append(Peer("t2tp, one device", "ours", [f"--case={case}"]))
    return [*peers, Peer("matmul, float32", "matmul")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("meshes", nargs="*", default=["1x1", "2x4"], metavar="MESH")
    parser.add_argument("--case", choices=CASES, default="design")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    flops = CASES[args.case].matmul_flops()
    print(f"| mesh | | ms | spread | t2tp / it | GFLOP/s | share of matmul |\n|{' --- |' * 7}")
    for mesh in args.meshes:
        peers, absent = take_turns(peers_for(mesh, args.case), args.turns, args.steps)
        by_name = {peer.name: peer for peer in peers}
        products = by_name["matmul, float32"]
        peak = products.facts["flops"] / products.median
        for peer in peers:
            work = peer.facts.get("flops", flops)
            rate = work / peer.median
            ratio = f"{by_name['t2tp'].median / peer.median:.2f}" if work == flops else ""
            times = f"{1e3 * peer.median:.0f} | {peer.spread:.0%} | {ratio}"
            print(f"| {mesh} | {peer.name} | {times} | {rate / 1e9:.0f} | {rate / peak:.0%} |")
        for name, reason in absent.items():
            print(f"| {mesh} | {name} | absent: {reason} | | | | |", flush=True)


if __name__ == "__main__":
    main()
