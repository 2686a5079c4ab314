"""Files in the safetensors format, read and written slice by slice.

A file consists of the header's size (8 bytes, little-endian), the header, and the values. The
header is JSON with the dtype, shape and position of each tensor
(https://github.com/huggingface/safetensors#format). The library `safetensors` checks the header. We
map the values into memory ourselves, because a slice of our variable is a strided view of the
file's tensor, and because the library can only write whole files.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from t2tp.huggingface.errors import ConversionError
from t2tp.optional_import import optional_import
from t2tp.typed_files import Count, InvalidFileError, convert, open_regular, parse_json

# Max bytes of a file, and of its header. The header of a model with 100,000 tensors has 12 MB.
_MAX_BYTES, _MAX_HEADER = 1 << 50, 16 << 20

# The dtypes of weights, by their names in files.
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class _HeaderEntry:
    """The entry of a tensor in a file's header. `data_offsets` begin at the end of the header."""

    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[Count, Count]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's dtype, shape and position in a file.

    Attributes:
      dtype: name of the dtype in the file.
      begin: index of the tensor's first byte in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def opened(self, mode: Literal["r", "r+"] = "r") -> np.ndarray:
        """Maps the tensor into memory, to read (`r`) or write (`r+`) its values later.

        Raises:
          ConversionError: the dtype is none of `DTYPES`.
        """
        if self.dtype not in DTYPES:
            raise ConversionError(
                f"{self.path} holds values of dtype {self.dtype}: weights are"
                f" {', '.join(DTYPES)}; write the model in one of these first (quantized models"
                " cannot be converted)"
            )
        dtype = DTYPES[self.dtype]
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        count = math.prod(self.shape)
        of_bytes = np.memmap(
            str(self.path), np.uint8, mode, offset=self.begin, shape=(count * dtype.itemsize,)
        )
        return of_bytes.view(dtype).reshape(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Returns the tensors of a file; raises ConversionError if it is damaged or incomplete.

    Raises:
      ConversionError: the file is damaged or incomplete.
      ModuleNotFoundError: the library `safetensors` is not installed; the message says how to
        install it.
      OSError: the file cannot be read.
    """
    with optional_import("reading weights needs the library safetensors: pip install -e '.[text]'"):
        from safetensors import SafetensorError, safe_open
    with open_regular(path, _MAX_BYTES) as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            if length > _MAX_HEADER:
                raise InvalidFileError(f"its header has over {_MAX_HEADER:,} bytes")
            header = parse_json(file.read(length), "its header", dict[str, Any], _MAX_HEADER)
            header.pop("__metadata__", None)
            entries = convert(header, dict[str, _HeaderEntry], "its header")
            with safe_open(path, "numpy"):  # The library checks the sizes of tensors and file.
                pass
        except (SafetensorError, InvalidFileError) as error:
            raise ConversionError(
                f"{path} is damaged or incomplete ({error}): download it again"
            ) from error
    return {
        name: TensorInfo(path, each.dtype, each.shape, 8 + length + each.data_offsets[0])
        for name, each in entries.items()
    }


def create(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, TensorInfo]:
    """Creates a file with tensors of zeros; write their values with `TensorInfo.opened`.

    `tensors` maps each name to the dtype, as in `DTYPES`, and the shape.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begins, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begins[name] = end
        end += math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begins[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # Values are aligned.
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        # Reserves disk space: if the disk is full, writing to a mapped file kills the process.
        try:
            os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    return {
        name: TensorInfo(path, dtype, shape, 8 + len(text) + begins[name])
        for name, (dtype, shape) in tensors.items()
    }


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file with these tensors, whose dtypes are in `DTYPES`."""
    created = create(
        path, {key: (DTYPE_NAMES[each.dtype], each.shape) for key, each in tensors.items()}
    )
    for key, tensor in tensors.items():
        created[key].opened("r+")[...] = tensor
