"""Reads and writes `run.yaml`, the file in a run's directory with the settings of the run."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from t2tp import checkpoint
from t2tp.hparam import HParams
from t2tp.object_store.mirror import address_of
from t2tp.trainer import run_yaml
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hooks.heartbeat import HEARTBEAT_FILE
from t2tp.trainer.hparams_fit import declared
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory
from t2tp.trainer.run_yaml import RunSettings
from t2tp.typed_files import convert, file_inside, read_json

# Programs read these flags from `run.yaml`, with these types. A flag may also be null or missing.
_TYPES = {"train_steps": int, "random_seed": int, "t2t_usr_dir": str}


class OtherRunError(ValueError):
    """The run in the directory has another model, problem or training data."""


class RunFileError(ValueError):
    """`run.yaml` is damaged or missing."""


@dataclass(frozen=True)
class SavedRun:
    """The hparams, mesh included, and the flags with which a run was last started."""

    hparams: HParams
    flags: dict[str, Any]


def read(output_dir: str | os.PathLike[str]) -> SavedRun | None:
    """Reads `run.yaml`; returns None if there is no such file (see `check_known`).

    Raises:
      RunFileError: the file is damaged.
      OSError: the file cannot be read.
    """
    path = Path(output_dir, run_yaml.FILE)
    try:
        settings = run_yaml.read(file_inside(path.parent, path.name))
        flags = convert(settings.flags, _TYPES, path)
        names = settings.names
        if names.get("data_digest") == "":  # Would disable the check of the data.
            raise ValueError(f"{path}: data_digest is empty")
        hparams = declared(settings.hparams, names.get("hparams_set"), names.get("model"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise RunFileError(f"{named}; put a copy of the file back") from error
    return SavedRun(hparams, {**names, **flags})


def check_known(output_dir: str, saved: SavedRun | None) -> None:
    """Checks that a directory without `run.yaml` holds no checkpoints.

    Raises:
      RunFileError: the directory holds checkpoints but no `run.yaml`.
    """
    if saved is None and checkpoint.step_directories(checkpoint_directory(output_dir)):
        quoted = shlex.quote(str(output_dir))
        raise RunFileError(
            f"{output_dir} holds checkpoints but no {run_yaml.FILE}, so their model, problem and"
            " data are unknown: put a copy of it back, or use another output_dir and"
            f" --warm_start_from={quoted} to train or"
            f" --checkpoint_path={quoted} to evaluate"
        )


def check_not_trained(output_dir: str, save_steps: float) -> None:
    """Checks that a run without checkpoints has not had any; warns of any other started run.

    The heartbeat shows a lost checkpoint if the training ended, or has done twice the steps after
    which the first checkpoint is saved: the second one waits for the first.

    Raises:
      RunFileError: the run's checkpoints are gone.
    """
    path = Path(output_dir, HEARTBEAT_FILE)
    try:
        beat = read_json(path, {"step": int, "state": str})
    except (OSError, ValueError):
        return
    step = beat.get("step") or 0
    if step and (beat.get("state") == "ended" or step >= 2 * save_steps):
        raise RunFileError(
            f"{output_dir} has no checkpoint, but its {HEARTBEAT_FILE} says that it was trained to"
            f" step {step}: put the checkpoints back, or delete that file to start again at step 0"
        )
    logging.warning("%s holds a run without a checkpoint: it starts at step 0", output_dir)


def read_run(output_dir: str) -> SavedRun:
    """Reads `run.yaml` of an existing run; raises RunFileError if there is no run.

    Raises:
      RunFileError: the directory holds no run, or the file is missing or damaged.
      OSError: the file cannot be read.
    """
    saved = read(output_dir)
    check_known(output_dir, saved)
    if saved is None:
        raise RunFileError(f"{output_dir} holds no run: --output_dir names a run's directory")
    return saved


def read_flags(output_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the flags of `run.yaml`; {} without a run."""
    saved = read(output_dir)
    return {} if saved is None else saved.flags


def write(output_dir: str | os.PathLike[str], hparams: HParams, flags: Mapping[str, Any]) -> None:
    """Writes `run.yaml` atomically; creates the directory if needed.

    Raises:
      UsageError: the file cannot be written, or is a link.
    """
    directory = Path(output_dir)
    if (path := directory / run_yaml.FILE).is_symlink():  # Of a sent run: it may lead anywhere.
        raise UsageError(f"{path} is a link: put a copy of the file in its place")
    flags = {k: address_of(v) if isinstance(v, str) else v for k, v in flags.items()}
    names = {name: flags[name] for name in run_yaml.NAMES if name in flags}
    others = {name: value for name, value in flags.items() if name not in run_yaml.NAMES}
    with as_usage_error(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        run_yaml.write(path, RunSettings(names, hparams.values(), others))


def check_same_run(output_dir: str, saved: SavedRun, model: str, problem: str) -> None:
    """Checks that the run in a directory has this model and problem.

    Raises:
      OtherRunError: the model or problem differs.
    """
    if (saved.flags.get("model"), saved.flags.get("problem")) != (model, problem):
        raise OtherRunError(
            f"{output_dir} holds a run of model {saved.flags.get('model')} on problem"
            f" {saved.flags.get('problem')}, not of {model} on {problem}: choose another output_dir"
        )


def run_of(path: str) -> Path | None:
    """Returns the directory of the run that `path` is in (see `find_checkpoint.find`), or None."""
    named = Path(path).absolute()
    above = (named, *named.parents[:3]) if path else ()
    return next((each for each in above if (each / run_yaml.FILE).exists()), None)


def resumed_hparams(saved: HParams, preset: HParams) -> HParams:
    """Returns the hparams of a resumed run: the saved values, and defaults for new hparams.

    `preset` is the run's hparams set, as the current code defines it. Its values are not used for
    new hparams, because they could change the trained model. A new hparam's default keeps the
    behaviour of the code before the hparam existed.
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


def check_writable(directory: str, what: str = "output_dir") -> None:
    """Checks that files can be written in a directory, without creating it.

    The directory need not exist. `what` is the directory's name in the message.

    Raises:
      OSError: the directory, or its nearest existing parent, is no directory or not writable.
    """
    path = Path(directory).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(f"{what} {directory}: {path} is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{what} {directory}: {path} cannot be written")
