"""The files that decoding reads and writes: a line for each source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2tp.decoding import DecodeOptions
from t2tp.trainer.decoding import Decoded, DecodedRow
from t2tp.trainer.run_files import check_writable
from t2tp.whole_file import write_text

# What would be taken for the end of a line or field is written as in Python.
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def read_lines(path: str) -> list[str]:
    """The lines of a file, without their ends.

    Raises:
      OSError: it cannot be read.
      ValueError: it is not UTF-8.
    """
    try:
        # As bytes: a lone carriage return is no end of a line.
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def check_can_be_written(path: str) -> None:
    """Refuses the name of a file, or the beginning of such names, that cannot be written.

    Raises:
      OSError: the folder cannot be written, or the name is that of a folder.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, and the name of a file is wanted")
    check_writable(str(Path(path).parent), "the folder of what is decoded,")


def write_lines(path: str | Path, lines: Sequence[str]) -> None:
    """Writes a file, whole or not at all; its folder is made if needed.

    Raises:
      OSError: it cannot be written.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def line_of(found: Sequence[Decoded], options: DecodeOptions) -> str:
    """What was decoded for a source as a line: texts, and scores if they are wanted, with tabs."""
    fields = []
    for each in found:
        fields.append(each.text.translate(_ESCAPES))
        if options.write_beam_scores:
            fields.append(f"{each.score:.4f}")
    return "\t".join(fields)


def write_rows(base: str | Path, rows: Sequence[DecodedRow], options: DecodeOptions) -> list[Path]:
    """Writes `BASE.inputs`, `BASE.targets` and `BASE.outputs`, a line for each example.

    Returns:
      their paths.
    """
    columns = {
        "inputs": [row.inputs.translate(_ESCAPES) for row in rows],
        "targets": [row.targets.translate(_ESCAPES) for row in rows],
        "outputs": [line_of(row.outputs, options) for row in rows],
    }
    paths = []
    for name, lines in columns.items():
        paths.append(Path(f"{base}.{name}"))
        write_lines(paths[-1], lines)
    return paths


def write_pictures(base: str | Path, pictures: np.ndarray, levels: int) -> list[Path]:
    """Writes `BASE-000.png` and so on.

    Args:
      base: path without number and ending.
      pictures: uint8 [pictures, height, width, channels], of 1 or 3 channels.
      levels: how many values a channel has: the largest becomes white.

    Returns:
      their paths.

    Raises:
      ModuleNotFoundError: Pillow is not installed; says how to install it.
      OSError: they cannot be written.
    """
    image = _pillow()
    Path(base).parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, picture in enumerate(pictures):
        shades = np.rint(picture.astype(np.float32) * (255 / (levels - 1))).astype(np.uint8)
        path = Path(f"{base}-{number:03d}.png")
        unfinished = path.with_name(f"{path.name}.tmp")
        image.fromarray(shades[..., 0] if shades.shape[-1] == 1 else shades).save(unfinished, "png")
        unfinished.replace(path)
        paths.append(path)
    return paths


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures are written by Pillow: pip install 't2tp[images]'"
        ) from error
    return Image
