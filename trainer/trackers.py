"""`--tracker`: sends a run's scalars to Weights & Biases or MLflow.

Their packages are imported only when they are asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t2tp.nearest import nearest
from t2tp.whole_file import write_text

# Takes steps done, and scalars by name.
Tracker = Callable[[int, Mapping[str, float]], None]

# How a run that is resumed finds what it was to the tracker.
_FILE = "tracker.json"


def check(spec: str) -> None:
    """Refuses a tracker that cannot be used.

    Args:
      spec: `wandb` or `mlflow`, or one of them with a project, as in `wandb:my_project`; or "".

    Raises:
      ValueError: there is no such tracker, or its package is not installed.
    """
    package = spec.partition(":")[0]
    if not package:
        return
    if package not in _OPENERS:
        raise ValueError(f"tracker={spec}: {nearest(package, _OPENERS, 'trackers')}")
    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"tracker={spec}: the package {package} is not installed: pip install {package}"
        )


def open_tracker(spec: str, output_dir: str, hparams: Mapping[str, Any]) -> Tracker:
    """Begins, or goes on with, the run of an output_dir; it ends with the process.

    Args:
      spec: see `check`.
      output_dir: the run's, whose last part names it.
      hparams: the run's hyperparameters.
    """
    package, _, project = spec.partition(":")
    return _OPENERS[package](project or "t2tp", Path(output_dir).absolute(), hparams)


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
        mlflow.start_run(run_id=json.loads(file.read_text("utf-8"))["mlflow_run_id"])
    else:
        run = mlflow.start_run(run_name=output_dir.name)
        mlflow.log_params(dict(hparams))
        write_text(file, json.dumps({"mlflow_run_id": run.info.run_id}) + "\n")
    return lambda step, scalars: mlflow.log_metrics(dict(scalars), step=step)


_OPENERS: dict[str, Callable[[str, Path, Mapping[str, Any]], Tracker]] = {
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
}
