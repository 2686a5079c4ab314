"""Checks that paths are local, not addresses of remote storage."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


def check_local(name: str, path: str) -> None:
    """Checks that a path is local: `gs://x` would otherwise be a directory named `gs:`.

    Args:
      name: of the flag or setting.
      path: its value.

    Raises:
      ValueError: the path is an address, such as gs://bucket/run.
    """
    if _SCHEME.match(path):
        raise ValueError(
            f"{name}={path}: only paths of this host's files are read and written: mount the"
            " storage (with gcsfuse, s3fs or rclone mount, say), or copy to and from it"
        )
