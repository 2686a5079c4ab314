"""Shows where the time of a training step goes on the device, with TensorFlow's profiler."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

STEPS = 3
# The first matching pattern gives a kernel's kind. Kernels without a match are memory-bound: norms,
# additions, the optimizer.
KINDS = {
    "attention": re.compile(r"fmha|flash|attention|sdpa", re.I),
    "matmul": re.compile(r"gemm|matmul|cutlass|xmma|nvjet|sm\d+_.*mma", re.I),
    "copies": re.compile(r"memcpy|memset", re.I),
}


def profile(step: Callable[[], tf.Tensor]) -> dict[str, Any]:
    """Returns the fraction of each kind of kernel, and the milliseconds of the longest kernels."""
    with tempfile.TemporaryDirectory() as directory:
        tf.profiler.experimental.start(directory)
        for _ in range(STEPS):
            loss = step()
        float(loss)
        tf.profiler.experimental.stop()
        records = _kernels(Path(directory))
    longest: Counter[str] = Counter()
    for name, begin, end in records:
        longest[name[:100]] += (end - begin) // STEPS
    longest_ms = {name: ps / 1e9 for name, ps in longest.most_common(30)}
    return {"fractions": _fractions(records), "longest_ms": longest_ms}


def _kernels(directory: Path) -> list[tuple[str, int, int]]:
    """Returns the name, begin and end of each kernel, in picoseconds and in the order of time."""
    records = []
    for path in directory.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        planes = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
        for plane in planes or [plane for plane in space.planes if plane.name == "/host:CPU"]:
            for line in plane.lines:
                if planes and not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    begin = line.timestamp_ns * 1000 + event.offset_ps
                    name = plane.event_metadata[event.metadata_id].name
                    records.append((name, begin, begin + event.duration_ps))
    return sorted(records, key=lambda kernel: kernel[1])


def _fractions(records: list[tuple[str, int, int]]) -> dict[str, float]:
    """Returns the fraction of the time of each kind; during the fraction `gaps`, no kernel ran."""
    time: Counter[str] = Counter()
    busy_until = records[0][1]
    for name, begin, end in records:
        kind = next((kind for kind, names in KINDS.items() if names.search(name)), "memory-bound")
        time["gaps"] += max(0, begin - busy_until)
        time[kind] += max(0, end - max(begin, busy_until))
        busy_until = max(busy_until, end)
    return {kind: round(part / time.total(), 4) for kind, part in time.most_common()}
