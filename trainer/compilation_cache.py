"""Keeps XLA's compiled programs and autotuning results between runs.

TensorFlow reads the cache's settings from environment variables when it first compiles. An entry's
file name has a hash of the program. The machine code also depends on the versions, the device and
XLA's settings. So each combination of these has its own directory.

A cached program is machine code that TensorFlow runs. So only its user may write in the cache.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from absl import logging

from t2tp.trainer.errors import UsageError

_CACHE_FLAG = "--tf_xla_persistent_cache_directory"
_AUTOTUNING = "autotuning"
_MAX_BYTES = 4 << 30

# A run fails if TensorFlow cannot write a new entry.
_MIN_FREE_BYTES = 1 << 30

# These variables change what XLA or TensorFlow compile for the same program.
_SETTINGS = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_DETERMINISTIC_OPS", "NVIDIA_TF32_OVERRIDE")

_GPUS, _DRIVER, _CPUS = "/proc/driver/nvidia/gpus", "/proc/driver/nvidia/version", "/proc/cpuinfo"


def default_directory() -> Path:
    """Returns the directory of the cache, in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "t2tp", "compiled")


def use(directory: str | None, *settings: object) -> None:
    """Makes TensorFlow use a compilation cache; call it before TensorFlow compiles anything.

    If TF_XLA_FLAGS names a cache already, for example in a process that a run has started, this
    cache is used.

    Args:
      directory: the cache. None: `default_directory`, or no cache if this directory cannot be used.
        "": no cache.
      *settings: the program's settings that change how TensorFlow compiles the same graph.

    Raises:
      UsageError: `directory` cannot be used.
    """
    if directory == "" or _CACHE_FLAG in os.environ.get("TF_XLA_FLAGS", ""):
        return
    root = default_directory() if directory is None else Path(directory)
    try:
        entries = _prepared(root, settings)
    except (OSError, UsageError) as error:
        if directory is not None:
            raise UsageError(f"--compilation_cache_dir={directory}: {error}") from error
        logging.warning("compiled programs are not cached: %s", error)
        return
    for variable, flag in (
        ("TF_XLA_FLAGS", f"{_CACHE_FLAG}={entries}"),
        ("XLA_FLAGS", f"--xla_gpu_per_fusion_autotune_cache_dir={entries / _AUTOTUNING}"),
    ):
        os.environ[variable] = f"{os.environ.get(variable, '')} {flag}".strip()


def _prepared(root: Path, settings: Sequence[object]) -> Path:
    """Deletes old and damaged entries; returns the directory of this machine's entries."""
    root = root.expanduser().resolve()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in (root, *root.parents):
        found, is_root = directory.stat(), directory == root
        others_write = found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if is_root else 0))
        is_sticky = found.st_mode & stat.S_ISVTX and not is_root  # Others delete only their files.
        is_foreign = found.st_uid != os.geteuid() and (is_root or found.st_uid)
        if is_foreign or (others_write and not is_sticky):
            raise UsageError(
                f"others can write in {directory}, and could place code in the cache, which your"
                " runs would execute: choose a directory of your own with the mode 0700"
            )
    free = shutil.disk_usage(root).free
    if free < _MIN_FREE_BYTES:
        raise UsageError(f"{free >> 20} MiB are free in {root}, and 1024 MiB are needed")
    entries = root / _kind(settings)
    (entries / _AUTOTUNING).mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # Another process is deleting the same files.
        files = [(path.lstat(), path) for path in root.rglob("*") if path.is_file()]
        sizes = 0
        for found, path in sorted(files, key=lambda file: -file[0].st_mtime):
            sizes += found.st_size
            if sizes > _MAX_BYTES or (path.parent == entries and not _is_complete(path)):
                path.unlink()
    return entries


def _kind(settings: Sequence[object]) -> str:
    """Returns a name for everything except the program that determines its machine code."""
    texts = [path.read_text("utf-8", "replace") for path in Path(_GPUS).glob("*/information")]
    gpus = {line for text in texts for line in text.splitlines() if line.startswith("Model:")}
    driver = Path(_DRIVER).read_text("utf-8", "replace") if gpus else ""
    core = Path(_CPUS).read_text("utf-8", "replace").split("\n\n")[0].splitlines()
    cpu = [line for line in core if line.startswith(("model name", "flags", "Features"))]
    variables = [os.environ.get(name) for name in _SETTINGS]
    facts = (platform.machine(), os.cpu_count(), cpu, sorted(gpus), driver, variables, settings)
    versions = [f"{name}-{metadata.version(name)}" for name in ("t2tp", "tensorflow")]
    return "-".join([*versions, hashlib.sha256(repr(facts).encode()).hexdigest()[:16]])


def _is_complete(path: Path) -> bool:
    """Whether a file is a whole protobuf. TensorFlow fails to read one that a crash truncated."""
    from google.protobuf.empty_pb2 import Empty  # Imported here to keep --help fast.
    from google.protobuf.message import DecodeError

    try:
        Empty.FromString(content := path.read_bytes())  # Unknown fields are parsed, too.
    except DecodeError:
        return False
    return bool(content)
