"""What goes wrong with checkpoints, in words for users."""

from __future__ import annotations

import re

import tensorflow as tf


class UnusableCheckpointError(OSError):
    """A folder is not a finished checkpoint, or the checkpoint is damaged."""


def reason(error: tf.errors.OpError) -> str:
    """What an operation's error says, without TensorFlow's names of nodes around it."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", error.message, flags=re.DOTALL)
