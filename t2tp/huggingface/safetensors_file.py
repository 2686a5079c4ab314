"""Files of tensors in the format safetensors, read and written a slice at a time.

A file is 8 bytes, the size of the header, little-endian; the header, JSON: for each tensor its
dtype, shape and place; and the values (https://github.com/huggingface/safetensors#format). The
library of that name reads and writes whole tensors, and has no bfloat16 in numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np

from t2tp.huggingface.errors import ConversionError

# The dtypes of weights, by their names in the files.
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Those of other tensors, such as masks, which a model may have and no conversion reads.
_SIZES = {
    **{name: dtype.itemsize for name, dtype in DTYPES.items()},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
    **{"F8_E4M3": 1, "F8_E5M2": 1},
}
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorInfo:
    """The place of a tensor.

    Attributes:
      path: of its file.
      dtype: its dtype's name in the file.
      shape: its shape.
      begin: the index of its first byte in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def opened(self, mode: Literal["r", "r+"] = "r") -> np.ndarray:
        """Returns the tensor, whose values are read from the file when they are used.

        Args:
          mode: `r` to read, `r+` to write.

        Raises:
          ConversionError: it is of a dtype that no weight has.
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
    """Returns the tensors of a file, by name.

    Raises:
      ConversionError: it is no safetensors file, or is truncated.
      OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LARGEST_HEADER):
            raise ConversionError(_truncated(path, f"its header is to have {length} bytes", size))
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        tensors = {
            name: TensorInfo(
                path, each["dtype"], tuple(each["shape"]), 8 + length + each["data_offsets"][0]
            )
            for name, each in header.items()
        }
        ends = {name: 8 + length + each["data_offsets"][1] for name, each in header.items()}
        for name, each in tensors.items():
            num_bytes = math.prod(each.shape) * _SIZES[each.dtype]
            if each.begin < 8 + length or ends[name] - each.begin != num_bytes:
                raise ValueError(name)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConversionError(
            f"{path} is no safetensors file: its header is damaged; download it again"
        ) from error
    if max(ends.values(), default=0) > size:
        raise ConversionError(_truncated(path, f"it is to have {max(ends.values())} bytes", size))
    return tensors


def create(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, TensorInfo]:
    """Creates a file of zeros, for `TensorInfo.opened` to write into.

    Args:
      path: of the file.
      tensors: dtype, as in `DTYPES`, and shape of each tensor, by name.

    Returns:
      The tensors, by name.
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
        file.truncate(8 + len(text) + end)
    return {
        name: TensorInfo(path, dtype, shape, 8 + len(text) + begins[name])
        for name, (dtype, shape) in tensors.items()
    }


def _truncated(path: Path, wanted: str, size: int) -> str:
    return f"{path} is truncated: {wanted} and the file has {size}; download it again"
