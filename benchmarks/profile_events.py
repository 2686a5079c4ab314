"""The events of a profile that TensorFlow has written."""

from __future__ import annotations

from pathlib import Path


def read_events(path: Path) -> list[tuple[str, int, int]]:
    """Returns the name, the begin and the end of each event, in picoseconds."""
    # Only in TensorFlow's own environment, and slow to import.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    return [
        (plane.event_metadata[event.metadata_id].name, begin, begin + event.duration_ps)
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if (begin := line.timestamp_ns * 1000 + event.offset_ps) >= 0
    ]
