"""Sliced checkpoints: saved on one mesh, restored on any other.

A checkpoint is a directory `step-<step>` that stores every tensor once, in the slices of the
devices. Two devices that hold halves of a [8192, 256] table write two slices of [4096, 256]. A mesh
of four devices reads four slices of [2048, 256] from these files.

A directory with this name is complete even if processes crashed; see `writing`. `program` saves and
restores a `t2tp.Program` (`t2tp.save_checkpoint`, `t2tp.restore_checkpoint`). It uses `variables`
(converts variables to slices and back), `restore` (restores the same checkpoint in all processes),
`writing`, `marker` and `reading` (the format), and `retention` (deletion). `t2tp.trainer.run_dir`
decides when a training saves, and from which checkpoint it resumes.
"""

from t2tp.best_metric import BestMetric
from t2tp.checkpoint.errors import (
    DamagedCheckpointError,
    DifferentCheckpointsError,
    NewerFormatError,
    UnusableCheckpointError,
)
from t2tp.checkpoint.files import set_aside, step_directories, step_directory
from t2tp.checkpoint.metrics import best_of, read_metrics, record_metrics
from t2tp.checkpoint.reading import Checkpoint, all_steps, last_finished, latest
from t2tp.checkpoint.retention import Retention, apply_retention
from t2tp.checkpoint.slices import Slice
from t2tp.checkpoint.writing import save

__all__ = [
    "BestMetric",
    "Checkpoint",
    "DamagedCheckpointError",
    "DifferentCheckpointsError",
    "NewerFormatError",
    "Retention",
    "Slice",
    "UnusableCheckpointError",
    "all_steps",
    "apply_retention",
    "best_of",
    "last_finished",
    "latest",
    "read_metrics",
    "record_metrics",
    "save",
    "set_aside",
    "step_directories",
    "step_directory",
]
