"""Sliced checkpoints: saved on one mesh, restored on any other."""

from t2tp.checkpoint.errors import UnusableCheckpointError
from t2tp.checkpoint.files import step_folder
from t2tp.checkpoint.reading import Checkpoint, all_steps, last_finished, latest
from t2tp.checkpoint.retention import keep
from t2tp.checkpoint.slices import Slice
from t2tp.checkpoint.writing import save

__all__ = [
    "Checkpoint",
    "Slice",
    "UnusableCheckpointError",
    "all_steps",
    "keep",
    "last_finished",
    "latest",
    "save",
    "step_folder",
]
