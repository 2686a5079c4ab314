"""The files that decoding writes: one line per source text, or one image per file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2tp.atomic_file import is_written_into, write_text
from t2tp.decoding import DecodeOptions
from t2tp.optional_import import optional_import
from t2tp.trainer.inference.run_decoder import Decoded, DecodedExample
from t2tp.trainer.run_dir.run_files import check_writable

STDOUT = "-"

# Characters that would end a line or a field, and their escapes, as in Python.
_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def check_can_be_written(path: str) -> None:
    """Checks that a file at this path, or files whose names begin with it, can be written.

    Raises:
      OSError: the directory cannot be written, or the path is a directory.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a directory: name a file")
    if not is_written_into(path):
        check_writable(str(Path(path).parent), "the directory of the decoded texts,")


def write_lines(path: str | Path, lines: Sequence[str]) -> None:
    """Writes a file atomically, or "-" to stdout; creates the directory if needed.

    Raises:
      OSError: the file cannot be written.
    """
    if str(path) == STDOUT:
        print("\n".join(lines))
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def line_of(decoded: Sequence[Decoded], options: DecodeOptions) -> str:
    """Formats the decoded texts of a source as a tab-separated line, with scores on request."""
    fields = []
    for each in decoded:
        fields.append(each.text.translate(_ESCAPES))
        if options.write_beam_scores:
            fields.append(f"{each.score:.4f}")
    return "\t".join(fields)


def write_rows(
    base: str | Path, rows: Sequence[DecodedExample], options: DecodeOptions
) -> list[Path]:
    """Writes `BASE.inputs`, `BASE.targets` and `BASE.outputs`, one line per example."""
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


def write_images(base: str | Path, images: np.ndarray) -> list[Path]:
    """Writes `BASE-000.png` and so on, and returns the paths.

    The images are uint8 [images, height, width, channels], with 1 or 3 channels.

    Raises:
      ModuleNotFoundError: Pillow is not installed; the message names the command to install it.
      OSError: the files cannot be written.
    """
    with optional_import("images are written by Pillow: pip install -e '.[images]'"):
        from PIL import Image
    Path(base).parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, each in enumerate(images):
        path = Path(f"{base}-{number:03d}.png")
        unfinished = path.with_name(f"{path.name}.tmp")
        pixels = each[..., 0] if each.shape[-1] == 1 else each
        Image.fromarray(pixels).save(unfinished, "png")
        unfinished.replace(path)
        paths.append(path)
    return paths
