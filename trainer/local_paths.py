"""Checks that paths are local, and not addresses of remote storage; reads text files."""

from os import PathLike

from t2tp.object_store.store import looks_like_address, without_secrets

_MAX_BYTES = 1 << 27


def check_local(name: str, path: str) -> None:
    """Raises ValueError if a path is an address: `gs://x` would be a directory named `gs:`.

    `name` is the flag or setting that has the path.
    """
    if looks_like_address(path):
        raise ValueError(
            f"{name}={without_secrets(path)}: expected a path on this host; only runs, data and"
            " texts may have addresses (in Python: `object_store.local_path(address)`)"
        )


def read_lines(path: str | PathLike[str]) -> list[str]:
    """Reads the lines of a file, without line ends.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is not UTF-8, or is very large or endless, as a device can be.
    """
    with open(path, "rb") as file:
        # Read as bytes, because text mode would split lines at a lone carriage return.
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{path} has over {_MAX_BYTES:,} bytes: divide it into several files")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]
