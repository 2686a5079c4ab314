"""What a program costs before its first step, against the size of the mesh.

    python benchmarks/tracing.py [MESH ...]

The graph is traced once, for a processor whose number is an argument, whatever the mesh. The first
step adds what TensorFlow does for each device: it instantiates the function there, all devices at
the same time. Meshes take turns; the figures are medians, in seconds.
"""

from __future__ import annotations

import statistics
import sys

from turns import Peer

REPETITIONS = 3


def main() -> None:
    meshes = sys.argv[1:] or ["1x2", "2x4", "8x8"]
    traces: dict[str, list[float]] = {mesh: [] for mesh in meshes}
    firsts: dict[str, list[float]] = {mesh: [] for mesh in meshes}
    for _ in range(REPETITIONS):
        for mesh in meshes:
            data, model = mesh.split("x")
            peer = Peer("t2tp", "ours", [f"--data={data}", f"--model={model}"])
            peer.start()
            peer.stop()
            traces[mesh].append(peer.facts["trace"])
            firsts[mesh].append(peer.facts["first_step"])
    smallest = statistics.median(traces[meshes[0]])
    print(f"{'mesh':8} {'trace s':>8} {'ratio':>6} {'first step s':>13} {'a device':>9}")
    for mesh in meshes:
        data, model = map(int, mesh.split("x"))
        trace, first = statistics.median(traces[mesh]), statistics.median(firsts[mesh])
        figures = f"{trace:8.2f} {trace / smallest:6.2f} {first:13.2f} {first / data / model:9.3f}"
        print(f"{mesh:8} {figures}", flush=True)


if __name__ == "__main__":
    main()
