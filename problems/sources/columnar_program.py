"""Converts a Parquet file to an Arrow file, or checks an Arrow file, as a program with limits.

A file of some kilobytes can have a value of gigabytes, or a value in millions of rows, and wrong
offsets end the process that reads them. So another process reads the files of strangers first. Its
arguments are the file and a new file for the result, which is empty if an Arrow file was checked.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Max memory of the program, and max bytes of all values: of any file, and for a byte of the file.
_MAX_MEMORY, _ANY_FILE, _GROWTH = 1 << 30, 1 << 26, 200
# Max processor seconds: of any file, and for a MiB of the file. The kernel ends the program then.
_ANY_FILE_SECONDS, _SECONDS_PER_MIB = 10, 1
# A row takes about this many bytes where rows are counted and shuffled.
_ROW_BYTES = 16
_BATCH_ROWS = 256


def main() -> None:
    """Reads the file, and ends with a sentence if its records cannot be used."""
    # Imports must not find the modules next to this file.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [directory for directory in sys.path if directory != here]
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Others reserve a gigabyte.
    mebibytes = os.path.getsize(sys.argv[1]) >> 20
    _limit(resource.RLIMIT_DATA, _MAX_MEMORY)
    _limit(resource.RLIMIT_CPU, _ANY_FILE_SECONDS + _SECONDS_PER_MIB * mebibytes)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        _read(Path(sys.argv[1]), sys.argv[2])
    except MemoryError:
        sys.exit(f"it takes more than {_MAX_MEMORY >> 20} MiB of memory")
    except Exception as error:  # pyarrow raises errors of all kinds.
        sys.exit((str(error).splitlines() or [type(error).__name__])[0])


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _read(path: Path, target: str) -> None:
    import pyarrow

    file_bytes, rows = path.stat().st_size, 0
    with pyarrow.OSFile(target, "wb") as file, contextlib.closing(_batches(path, file)) as batches:
        for batch, size in batches:
            if len(set(batch.schema.names)) < len(batch.schema.names):
                raise ValueError("several columns have the same name")
            if path.suffix != ".parquet":  # pyarrow makes the values of Parquet itself.
                batch.validate(full=True)
            rows += len(batch)
            if size + _ROW_BYTES * rows > _ANY_FILE + _GROWTH * file_bytes:
                raise ValueError(
                    f"its {file_bytes:,} bytes make over {rows:,} rows with {size:,} bytes"
                )


def _batches(path: Path, file: Any) -> Generator[tuple[Any, int], None, None]:
    """Yields batches, and the bytes that all have so far; writes those of a Parquet file."""
    import pyarrow.parquet

    if path.suffix != ".parquet":
        yield from _of_arrow(path)
        return
    with (
        pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20) as source,
        pyarrow.ipc.new_stream(file, source.schema_arrow) as stream,
    ):
        for batch in source.iter_batches(_BATCH_ROWS, use_threads=False):
            stream.write_batch(batch)
            yield batch, file.tell()


def _of_arrow(path: Path) -> Iterator[tuple[Any, int]]:
    """Yields batches, and the bytes that all have so far; keeps all, which may be compressed."""
    import pyarrow.ipc

    mapped, kept, size = pyarrow.memory_map(str(path)), [], 0
    try:
        batches = iter(pyarrow.ipc.open_stream(mapped))
    except pyarrow.ArrowInvalid:
        source = pyarrow.ipc.open_file(mapped)
        batches = map(source.get_batch, range(source.num_record_batches))
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        yield batch, size


if __name__ == "__main__":
    main()
