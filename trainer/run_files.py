"""What a run's folder says of itself: `hparams.json` and `flags.json`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2tp.hparam import HParams
from t2tp.trainer.errors import as_usage_error
from t2tp.whole_file import write_text

HPARAMS_FILE = "hparams.json"
FLAGS_FILE = "flags.json"

# Network file systems remember for up to a minute that a file was not there.
_SEEN_SECONDS = 60.0

# A run keeps these for its whole life.
_FIXED_FLAGS = ("model", "problem")


class OtherRunError(ValueError):
    """The folder holds a run of another model or problem."""


@dataclass(frozen=True)
class SavedRun:
    """What was written into a run's folder.

    Attributes:
      hparams: as they were when the run was last started.
      flags: how it was last started, by name.
    """

    hparams: HParams
    flags: dict[str, Any]


def read(output_dir: str) -> SavedRun | None:
    """Reads a run's files; None if the folder holds none.

    Raises:
      ValueError: a file is not what `write` wrote.
    """
    folder = Path(output_dir)
    try:
        hparams = HParams.load(folder / HPARAMS_FILE)
        flags = json.loads((folder / FLAGS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / FLAGS_FILE} is not JSON: {error}") from error
    return SavedRun(hparams, flags)


def write(output_dir: str, hparams: HParams, flags: Mapping[str, Any]) -> None:
    """Writes both files, each whole or not at all. The folder is made if needed.

    Raises:
      UsageError: they cannot be written; the disk is full, say.
    """
    folder = Path(output_dir)
    with as_usage_error(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        hparams.save(folder / HPARAMS_FILE)
        write_text(folder / FLAGS_FILE, json.dumps(dict(flags), indent=2) + "\n")


def check_shared(output_dir: str, seconds: float = _SEEN_SECONDS) -> None:
    """Refuses a folder other than that in which another process has written the run's files.

    Args:
      output_dir: the folder, as this process sees it.
      seconds: how long the files of a network may take to be seen.

    Raises:
      FileNotFoundError: it does not hold them.
    """
    deadline = time.monotonic() + seconds
    while not (Path(output_dir) / FLAGS_FILE).exists():
        if time.monotonic() > deadline:
            raise FileNotFoundError(
                f"{output_dir} does not hold the {FLAGS_FILE} that process 0 has written:"
                " output_dir must be a folder that all processes share"
            )
        time.sleep(0.1)


def check_same_run(output_dir: str, saved: SavedRun, model: str, problem: str) -> None:
    """Refuses a folder that holds a run of something else.

    Raises:
      OtherRunError: names what the folder holds.
    """
    wanted = {"model": model, "problem": problem}
    if any(saved.flags.get(name) != wanted[name] for name in _FIXED_FLAGS):
        raise OtherRunError(
            f"{output_dir} holds a run of model {saved.flags.get('model')} on problem"
            f" {saved.flags.get('problem')}, not of {model} on {problem}: choose another output_dir"
        )


def resumed_hparams(saved: HParams, preset: HParams) -> HParams:
    """The hparams with which a run goes on: the saved values, the preset's for what is new.

    Args:
      saved: those in the run's folder.
      preset: the hparams set as the code has it now.
    """
    resumed = preset.copy()
    for name, value in saved.values().items():
        if name in resumed:
            resumed.set(name, value)
        else:
            resumed.add(name, value)
    return resumed


def check_writable(output_dir: str) -> None:
    """Refuses a folder in which nothing can be written, without making it.

    Raises:
      OSError: it, or the nearest folder above that exists, is no folder or cannot be written.
    """
    path = Path(output_dir).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(f"output_dir {output_dir}: {path} is not a folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"output_dir {output_dir}: {path} cannot be written")
