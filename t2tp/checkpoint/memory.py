"""One process's slices in one file in memory, with a checksum.

Unlike a checkpoint on disk, it has all slices of the process's processors, of which other processes
may have copies, so that a restart on the same processors reads one file of its own host.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp.atomic_file import unfinished_path
from t2tp.checkpoint.errors import DamagedCheckpointError
from t2tp.checkpoint.slices import Slice
from t2tp.program.variables import Variables

_MAGIC = b"t2tpmem1"
_LENGTHS = struct.Struct("<QII")  # Bytes of the header; CRC-32 of header and content.

# A slice is known by its variable and where it begins.
Key = tuple[str, tuple[int, ...]]


def local_slices(variables: Variables) -> dict[Key, tf.Variable]:
    """Returns the slices of this process's processors, each once."""
    return {
        (variable.spec.name, begin): variable.slice_of(pnum)
        for variable in variables
        for begin, pnum in variable.local_owners().items()
    }


def as_slices(variables: Variables) -> list[tuple[Slice, tf.Variable]]:
    """Returns the slices of `local_slices` with their place in the whole variables."""
    shapes = {v.spec.name: tuple(v.spec.shape.to_integer_list) for v in variables}
    return [
        (Slice(name, shapes[name], begin, tuple(value.shape), value.dtype), value)
        for (name, begin), value in local_slices(variables).items()
    ]


def write(path: Path, values: Sequence[tuple[Slice, tf.Tensor]], metadata: dict) -> None:
    """Writes slices into a file, which has its name only when it is complete.

    Args:
      path: of the file.
      values: slices and their values on the CPU.
      metadata: plain JSON.

    Raises:
      OSError: it cannot be written; the memory is full, say.
    """
    arrays = [np.ascontiguousarray(value.numpy()) for _, value in values]
    table = [
        [each.name, [*map(int, each.begin)], [*map(int, each.size)], each.dtype.name, array.nbytes]
        for (each, _), array in zip(values, arrays, strict=True)
    ]
    header = json.dumps({"metadata": metadata, "slices": table}).encode()
    unfinished = unfinished_path(path)
    try:
        with open(unfinished, "wb") as file:
            file.write(_MAGIC + _LENGTHS.pack(len(header), zlib.crc32(header), 0) + header)
            crc = 0
            for array in arrays:
                content = array.reshape(-1).view(np.uint8).data
                crc = zlib.crc32(content, crc)
                file.write(content)
            file.seek(len(_MAGIC))
            file.write(_LENGTHS.pack(len(header), zlib.crc32(header), crc))
        os.rename(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict, dict[Key, tf.Tensor]]:
    """Reads a file of `write`.

    Returns:
      The metadata, and the values on the CPU.

    Raises:
      DamagedCheckpointError: it is missing, or not what was written.
    """
    try:
        content = path.read_bytes()
        begin = len(_MAGIC) + _LENGTHS.size
        if len(content) < begin or not content.startswith(_MAGIC):
            raise ValueError("no checkpoint in memory")
        length, header_crc, crc = _LENGTHS.unpack(content[len(_MAGIC) : begin])
        header, at = content[begin : begin + length], begin + length
        if zlib.crc32(header) != header_crc or zlib.crc32(memoryview(content)[at:]) != crc:
            raise ValueError("its checksum is wrong")
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} cannot be used: {error}.") from error
    fields = json.loads(header)
    values = {}
    with tf.device("CPU:0"):
        for name, first, size, dtype, count in fields["slices"]:
            kind = tf.as_dtype(dtype)
            array = np.frombuffer(content, np.uint8, count, at).view(kind.as_numpy_dtype)
            values[name, tuple(first)] = tf.constant(array.reshape(size), kind)
            at += count
    return fields["metadata"], values
