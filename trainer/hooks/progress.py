"""Training progress: a bar on a terminal, lines in a log."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging
from tqdm import tqdm

from t2tp.trainer.hooks.hook import Hook, Training

# The bar's format until the first step is done: the program is compiled, and no speed is known.
_COMPILING = "{n_fmt}/{total_fmt} [{elapsed}, compiling the first step]"


class TrainingProgress(Hook):
    """Shows steps, loss, speed and the time left, on stderr."""

    def __init__(
        self, first_step: int, last_step: int, next_checkpoint: Callable[[int], str]
    ) -> None:
        """Sets the range of steps; the bar appears on entering the context.

        Args:
          first_step: steps done before this training.
          last_step: steps done at its end.
          next_checkpoint: maps steps done to the bar's text about the next checkpoint.
        """
        self._first_step = first_step
        self._last_step = last_step
        self._next_checkpoint = next_checkpoint
        self._bar: tqdm | None = None

    def __enter__(self) -> TrainingProgress:
        # A terminal without a width, such as a container's, shows lines.
        if sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns:
            self._bar = tqdm(
                initial=self._first_step,
                total=self._last_step,
                unit="step",
                dynamic_ncols=True,
                bar_format=_COMPILING,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Advances the bar."""
        if self._bar is not None:
            self._bar.bar_format = None
            self._bar.update()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows a step's `loss` and, if known, `step_time` in seconds and `tokens_per_second`."""
        parts = [f"loss {scalars['loss']:.4f}"]
        if "tokens_per_second" in scalars:
            parts.append(f"{scalars['tokens_per_second']:,.0f} tokens/s")
        if self._bar is not None:
            self._bar.set_postfix_str("  ".join([*parts, self._next_checkpoint(step)]))
            return
        if "step_time" in scalars:
            seconds = round((self._last_step - step) * scalars["step_time"])
            parts.append(f"{1000 * scalars['step_time']:.1f} ms/step")
            parts.append(f"{datetime.timedelta(seconds=seconds)} left")
        logging.info("step %d/%d  %s", step, self._last_step, "  ".join(parts))
