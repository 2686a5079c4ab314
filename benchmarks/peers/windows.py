"""Windows of the standard library's tokens for learners in PyTorch, from the files of t2tp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import training
import turn


class Text:
    """Random windows of the training text, and the first windows of the validation text."""

    def __init__(self, data_dir: str, sizes: turn.Sizes) -> None:
        self._sizes = sizes
        self._train, self._validation = (
            np.concatenate(
                [
                    np.fromfile(path, "<u2")
                    for path in sorted(Path(data_dir).glob(f"{_PROBLEM}/{split}-*.targets"))
                ]
            )
            for split in ("train", "validation")
        )
        self._random = np.random.default_rng(0)

    def batch(self) -> torch.Tensor:
        """Returns windows from random places, with the token before each: [batch, length + 1]."""
        length = self._sizes.length
        begins = self._random.integers(1, len(self._train) - length, self._sizes.batch)
        return self._windows(self._train, begins)

    @torch.no_grad()
    def nats(self, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """Returns the total nats of `training.EVALUATED` batches of the validation text."""
        length, batch = self._sizes.length, self._sizes.batch
        begins = np.arange(0, training.EVALUATED * batch * length, length).reshape(-1, batch)
        losses = (loss_of(self._windows(self._validation, each)).item() for each in begins)
        return batch * length * sum(losses)

    def _windows(self, tokens: np.ndarray, begins: np.ndarray) -> torch.Tensor:
        # The window at 0 gets the last token of all, which ends a document, as the token before it.
        rows = tokens[begins[:, None] + np.arange(-1, self._sizes.length)]
        return torch.from_numpy(rows.astype(np.int64))


_PROBLEM = "languagemodel_python_stdlib"
