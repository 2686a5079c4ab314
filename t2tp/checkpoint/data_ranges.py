"""Finds given slices in a checkpoint's data files, as ranges of bytes.

TensorFlow's index is a sorted table (LevelDB's format, uncompressed) from keys to descriptions. The
key of a tensor is its name. The key of a saved slice is the name, a terminator, and the slice's
begins and sizes, encoded such that the keys are sorted by begin and size.
"""

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto

from t2tp.checkpoint.slices import Slice

Table = list[tuple[bytes, bytes]]
_FOOTER_BYTES = 48


def data_ranges(table: Table, slices: Sequence[Slice]) -> dict[int, list[tuple[int, int]]]:
    """Finds the byte ranges of the saved slices that overlap with given slices.

    Returns:
      Number of the data file -> ranges (begin, end) in it, ascending. Adjacent ranges are joined.
    """
    keys = [key for key, _ in table]
    found: set[tuple[int, int, int]] = set()
    for each in slices:
        name = each.name.encode()
        tensor = BundleEntryProto.FromString(table[bisect.bisect_left(keys, name)][1])
        regions = sorted(
            [(e.start, e.length if e.HasField("length") else -1) for e in region.extent]
            for region in tensor.slices
        )
        first = bisect.bisect_left(keys, b"\0" + name + b"\0\1")
        saved = [BundleEntryProto.FromString(v) for _, v in table[first : first + len(regions)]]
        whole = [[(0, -1)] * len(each.shape)]
        for region, entry in zip(regions or whole, saved or [tensor], strict=True):
            dims = zip(region, each.begin, each.size, strict=True)
            if all(b < at + n and (size < 0 or at < b + size) for (b, size), at, n in dims):
                found.add((entry.shard_id, entry.offset, entry.offset + entry.size))
    ranges: dict[int, list[tuple[int, int]]] = {}
    for shard, begin, end in sorted(found):
        joined = ranges.setdefault(shard, [])
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return ranges


def read_index(path: Path) -> Table:
    """Reads the keys and values of an index, ascending by key."""
    content = path.read_bytes()
    _, _, begin, size = _varints(content, len(content) - _FOOTER_BYTES, 4)[0]
    handles = [_varints(handle, 0, 2)[0] for _, handle in _block(content, begin, size)]
    return [item for begin, size in handles for item in _block(content, begin, size)]


def _block(content: bytes, begin: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields a block's keys and values.

    A key is stored without the prefix that it shares with the previous key.
    """
    restarts = int.from_bytes(content[begin + size - 4 : begin + size], "little")
    at, end, key = begin, begin + size - 4 * (restarts + 1), b""
    while at < end:
        (shared, rest, length), at = _varints(content, at, 3)
        key = key[:shared] + content[at : at + rest]
        yield key, content[at + rest : at + rest + length]
        at += rest + length


def _varints(content: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Decodes `count` varints: each byte has seven bits of the number, the lowest bits first.

    Returns the numbers, and the position after them.
    """
    numbers = []
    for _ in range(count):
        number = shift = 0
        while True:
            number |= (content[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if content[at - 1] < 0x80:
                break
        numbers.append(number)
    return numbers, at
