"""Sliced checkpoints: saved on one mesh, restored on any other."""

from t2tp.checkpoint.background import Background
from t2tp.checkpoint.errors import NewerFormatError, UnusableCheckpointError
from t2tp.checkpoint.files import set_aside, step_folder, step_folders
from t2tp.checkpoint.host_copy import copy_to_host
from t2tp.checkpoint.metrics import Goal, read_metrics, record_metrics
from t2tp.checkpoint.reading import Checkpoint, all_steps, last_finished, latest
from t2tp.checkpoint.retention import Retention, keep
from t2tp.checkpoint.slices import Slice
from t2tp.checkpoint.writing import save, save_in_parts

__all__ = [
    "Background",
    "Checkpoint",
    "Goal",
    "NewerFormatError",
    "Retention",
    "Slice",
    "UnusableCheckpointError",
    "all_steps",
    "copy_to_host",
    "keep",
    "last_finished",
    "latest",
    "read_metrics",
    "record_metrics",
    "save",
    "save_in_parts",
    "set_aside",
    "step_folder",
    "step_folders",
]
