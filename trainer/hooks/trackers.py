"""`--tracker`: sends a run's scalars to Weights & Biases or MLflow."""

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from t2tp.atomic_file import write_text
from t2tp.suggestions import check_known
from t2tp.trainer.errors import UsageError
from t2tp.typed_files import read_json

# Takes the number of steps done and scalars by name.
Tracker = Callable[[int, Mapping[str, float]], None]

# The file with the id of MLflow's run, for resuming.
_FILE = "tracker.json"


def check_tracker(spec: str) -> None:
    """Checks that a tracker can be used.

    Args:
      spec: `wandb` or `mlflow`, or one of them with a project, as in `wandb:my_project`; or "".

    Raises:
      ValueError: there is no such tracker, or its package is not installed.
    """
    package = spec.partition(":")[0]
    if not package:
        return
    check_known(package, _OPENERS, "trackers", f"tracker={spec}")
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"tracker={spec}: the package {package} is not installed: pip install {package}"
        )


def open_tracker(spec: str, output_dir: str, hparams: Mapping[str, Any]) -> Tracker:
    """Starts or resumes the tracker's run for an `output_dir`; that run ends with the process.

    If sending fails later, for example because a server is down, a warning is logged and training
    continues.

    The last component of `output_dir` names the tracker's run. `spec` is as in `check_tracker`.

    Raises:
      UsageError: the package fails, for example because the user is not logged in.
    """
    package, _, project = spec.partition(":")
    try:
        track = _OPENERS[package](project or "t2tp", Path(output_dir).absolute(), hparams)
    except Exception as error:  # The errors of the packages have no common base class.
        raise UsageError(f"tracker={spec}: {package} does not start: {_one_line(error)}") from error
    return _warning_once(spec, track)


def _warning_once(spec: str, track: Tracker) -> Tracker:
    """Wraps a tracker: consecutive failures cause one warning and no error."""
    is_failing = False

    def try_to_track(step: int, scalars: Mapping[str, float]) -> None:
        nonlocal is_failing
        try:
            track(step, scalars)
            is_failing = False
        except Exception as error:
            if not is_failing:
                logging.warning(
                    "tracker=%s: step %d was not sent, and training goes on: %s",
                    *(spec, step, _one_line(error)),
                )
            is_failing = True

    return try_to_track


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _open_wandb(project: str, output_dir: Path, hparams: Mapping[str, Any]) -> Tracker:
    wandb = importlib.import_module("wandb")
    run = wandb.init(
        project=project,
        name=output_dir.name,
        id=hashlib.sha256(str(output_dir).encode()).hexdigest()[:16],
        dir=str(output_dir),
        config=dict(hparams),
        resume="allow",
    )
    return lambda step, scalars: run.log(dict(scalars), step=step)


def _open_mlflow(project: str, output_dir: Path, hparams: Mapping[str, Any]) -> Tracker:
    mlflow = importlib.import_module("mlflow")
    mlflow.set_experiment(project)
    file = output_dir / _FILE
    if file.exists():
        mlflow.start_run(run_id=read_json(file, dict[str, str])["mlflow_run_id"])
    else:
        run = mlflow.start_run(run_name=output_dir.name)
        mlflow.log_params(dict(hparams))
        write_text(file, json.dumps({"mlflow_run_id": run.info.run_id}) + "\n")
    return lambda step, scalars: mlflow.log_metrics(dict(scalars), step=step)


_OPENERS: dict[str, Callable[[str, Path, Mapping[str, Any]], Tracker]] = {
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
}
