"""`t2tp_trainer` that prints, at its end, which examples this process has read to train."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.problems.data.batch_stream import ExampleSource
from t2tp.trainer.cli.programs import t2tp_trainer as main
from tests.trainer.tiny_problem import LanguagemodelEncodings

read: list[list[int]] = []  # The numbers of the examples in each read of the targets.


class Noting:
    """A source that records which examples are read."""

    def __init__(self, source: ExampleSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, feature: str, examples: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        if feature == "targets":
            read.append(examples.tolist())
        return self._source.read(feature, examples, parts)


@registry.register_problem
class LanguagemodelEncodingsNoted(LanguagemodelEncodings):
    """The tiny problem, with the same data, whose reads are recorded."""

    def directory(self, data_dir: str | Path) -> Path:
        return LanguagemodelEncodings().directory(data_dir)

    def examples(self, data_dir: str | Path, split: str, length: int) -> ExampleSource:
        source = super().examples(data_dir, split, length)
        return Noting(source) if split == "train" else source


if __name__ == "__main__":
    code = main()
    print(json.dumps(read))
    sys.exit(code)
