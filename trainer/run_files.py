"""What a run's folder says of itself: `hparams.json` and `flags.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2tp import checkpoint
from t2tp.hparam import HParams
from t2tp.trainer.checkpointing import checkpoint_folder
from t2tp.trainer.errors import as_usage_error
from t2tp.trainer.run_config import RunConfig
from t2tp.whole_file import write_text

HPARAMS_FILE = "hparams.json"
FLAGS_FILE = "flags.json"

# A run keeps these for its whole life.
_FIXED_FLAGS = ("model", "problem")


# What `flags.json` says of a run that programs go by. None: it does not say it.
_TYPES = {
    "model": str,
    "problem": str,
    "problem_options": str,
    "hparams_set": str,
    "train_steps": int,
    "random_seed": int,
    "data_digest": str,
    "data_order": int,
}


class OtherRunError(ValueError):
    """The directory holds a run of another model or problem, or one trained on other data."""


class RunFileError(ValueError):
    """A file of a run is lost or spoilt, so that nobody knows what the run is."""


@dataclass(frozen=True)
class SavedRun:
    """What was written into a run's folder.

    Attributes:
      hparams: as they were when the run was last started; None if their file is lost.
      flags: how it was last started, by name.
    """

    hparams: HParams | None
    flags: dict[str, Any]


def read(output_dir: str) -> SavedRun | None:
    """Reads a run's files; None if the folder holds none, see `check_known`.

    Raises:
      RunFileError: a file is not what `write` wrote.
      OSError: a file cannot be read.
    """
    path = Path(output_dir, HPARAMS_FILE)
    try:
        hparams = HParams.load(path)
    except FileNotFoundError:
        hparams = None
    except ValueError as error:
        raise RunFileError(
            f"{error}; put a copy of it back, or move it away and say with --hparams_set what it"
            " was"
        ) from error
    flags = read_flags(output_dir)
    return None if flags is None else SavedRun(hparams, flags)


def check_known(output_dir: str, saved: SavedRun | None) -> None:
    """Refuses to take a folder for that of a new run which holds the checkpoints of one.

    Args:
      output_dir: the folder.
      saved: what `read` has found there.

    Raises:
      RunFileError: it holds checkpoints, and nothing says of what.
    """
    if saved is None and checkpoint.step_folders(checkpoint_folder(output_dir)):
        raise RunFileError(
            f"{output_dir} holds checkpoints but no {FLAGS_FILE}, which says of what model, problem"
            " and data they are: put a copy of it back, or name them from another output_dir, with"
            f" --warm_start_from={output_dir} to train and --checkpoint_path={output_dir} to"
            " evaluate"
        )


def check_is_run(output_dir: str) -> None:
    """Refuses a folder that holds no run.

    Raises:
      RunFileError: it holds none, or one whose files are lost or spoilt.
      OSError: they cannot be read.
    """
    saved = read(output_dir)
    check_known(output_dir, saved)
    if saved is None:
        raise RunFileError(f"{output_dir} holds no run: --output_dir names a run's folder")


def read_flags(output_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Reads how a run was last started; None if the directory holds no run.

    Raises:
      RunFileError: the file is not what `write` wrote.
      OSError: it cannot be read.
    """
    path = Path(output_dir, FLAGS_FILE)
    try:
        flags = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFileError(f"{path} is not JSON: {error}; put a copy of it back") from error
    if not isinstance(flags, dict):
        raise RunFileError(
            f"{path} is a {type(flags).__name__}, not an object of names and values: put a copy"
            " of it back"
        )
    for name, kind in _TYPES.items():
        value = flags.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise RunFileError(
                f"{path}: {name} is {value!r}, and must be of type {kind.__name__}: put a copy of"
                " it back"
            )
    return flags


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


def check_same_data(
    config: RunConfig, problem: str, data_dir: str | os.PathLike[str], digest: str
) -> None:
    """Refuses data other than those on which the run, or the checkpoint that is named, was trained.

    The same vocabulary size is no proof of the same vocabulary, and a wrong one gives figures and
    texts that look like any others.

    Args:
      config: of the run; where `checkpoint_path` names a checkpoint of another run on the same
        problem, its data count as well.
      problem: name of the problem.
      data_dir: where its data are.
      digest: of these data, see `Problem.digest`.

    Raises:
      OtherRunError: they are others.
      RunFileError, OSError: `flags.json` cannot be read.
    """
    named = _run_of(config.checkpoint_path)
    for run in (Path(config.output_dir), *([named] if named else [])):
        flags = read_flags(run) or {}
        before = flags.get("data_digest")
        if before and flags.get("problem") == problem and before != digest:
            raise OtherRunError(
                f"the data of {problem} in {data_dir} are not those that the run in {run} was"
                " trained on: they were made again, from other texts or with other options; name"
                " the data_dir that it was trained on, or, to train, another output_dir"
            )


def _run_of(path: str) -> Path | None:
    """The run that a checkpoint is of; see `checkpointing.find`."""
    named = Path(path).absolute()
    above = (named, *named.parents[:3]) if path else ()
    return next((each for each in above if (each / FLAGS_FILE).exists()), None)


def resumed_hparams(saved: HParams, preset: HParams) -> HParams:
    """The hparams with which a run goes on: the saved values, for what is new the defaults.

    The default of a new hparam is what the code did before there was one. The preset may want
    something else of a new run, which would be another model than the one that was trained.

    Args:
      saved: those in the run's folder.
      preset: the hparams set as the code has it now.
    """
    resumed = preset.copy()
    for name in preset.values():
        resumed.set(name, preset.default(name))
    for name, value in saved.values().items():
        if name in resumed:
            resumed.set(name, value)
        else:
            resumed.add(name, value)
    return resumed


def check_writable(folder: str, what: str = "output_dir") -> None:
    """Refuses a folder in which nothing can be written, without making it.

    Args:
      folder: the folder; it need not exist.
      what: what it is to the user.

    Raises:
      OSError: it, or the nearest folder above that exists, is no folder or cannot be written.
    """
    path = Path(folder).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(f"{what} {folder}: {path} is not a folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{what} {folder}: {path} cannot be written")
