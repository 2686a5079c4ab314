"""`--eval_samples`: what the model writes or draws, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from t2tp.problems.images import ImageGenerationProblem
from t2tp.problems.problem import Problem
from t2tp.problems.text_to_text import PairProblem
from t2tp.trainer.codecs import codec_of
from t2tp.trainer.decoding import RunDecoder, check_writes
from t2tp.trainer.summaries import SummaryWriter

# Of a language model: most symbols of a prompt, and of its continuation.
_MOST_SYMBOLS = 64


class Samples:
    """A few examples of a split, each time the same, with what the model makes of them.

    Of a problem with inputs they are shown with targets and outputs, of a language model as prompt,
    text and continuation, of a problem about making pictures as pictures of the split and of the
    model.
    """

    def __init__(
        self,
        decoder: RunDecoder,
        problem: Problem,
        data_dir: str | PathLike[str],
        *,
        model: str,
        split: str,
        count: int,
        length: int,
    ) -> None:
        """Decodes nothing yet.

        Args:
          decoder: of the run.
          problem: of the run.
          data_dir: where its data were prepared.
          model: its name.
          split: whose first examples are shown.
          count: how many.
          length: most symbols of an example.

        Raises:
          UsageError: the model writes nothing, or the problem has nothing to write.
        """
        check_writes(model)
        if not isinstance(problem, ImageGenerationProblem):
            codec_of(problem, data_dir)
        self._decoder = decoder
        self._problem = problem
        self._data_dir = data_dir
        self._split = split
        self._count = count
        self._length = length

    def write(self, step: int, summaries: SummaryWriter | None) -> None:
        """Decodes with the present values.

        Args:
          step: steps done.
          summaries: where they are written; None in all processes but the first, which take part
            in decoding.
        """
        if isinstance(self._problem, ImageGenerationProblem):
            pictures = {"targets": self._rows(), "samples": self._decoder.pictures(self._count)}
            for name, values in pictures.items():
                if summaries is not None:
                    summaries.images(step, name, _bytes(values, self._problem.levels))
        else:
            names, rows = self._pairs() if self._has_inputs else self._continuations()
            if summaries is not None:
                summaries.text(step, "samples", table(names, rows))
        if summaries is not None:
            summaries.flush()

    @property
    def _has_inputs(self) -> bool:
        return isinstance(self._problem, PairProblem)

    def _rows(self) -> np.ndarray:
        """The targets of the examples."""
        source = self._problem.examples(self._data_dir, self._split, self._length)
        rows = np.arange(min(self._count, len(source)))
        return np.asarray(source.read("targets", rows, (slice(None),)))

    def _pairs(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows = self._decoder.split(self._split, self._count)
        shown = [(row.inputs, row.targets, row.outputs[0].text) for row in rows]
        return ("inputs", "targets", "output"), list(shown)

    def _continuations(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        codec = codec_of(self._problem, self._data_dir)
        size = min(self._length // 2, _MOST_SYMBOLS)
        shown = []
        for row in self._rows():
            prompt, goes_on = codec.decode(row[:size].tolist()), row[size : 2 * size].tolist()
            output = self._decoder.text(prompt, size)
            shown.append((prompt, codec.decode(goes_on), output))
        return ("prompt", "text", "continuation"), list(shown)


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, in which texts are shown as they are."""
    lines = [names, ["---"] * len(names), *([_as_it_is(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _as_it_is(text: str) -> str:
    """A text without anything that Markdown or HTML would read."""
    for special in "\\`*_[]#":
        text = text.replace(special, f"\\{special}")
    for special, shown in {"&": "&amp;", "<": "&lt;", "|": "&#124;", "\n": "<br>"}.items():
        text = text.replace(special, shown)
    return text


def _bytes(values: np.ndarray, levels: int) -> np.ndarray:
    """Values below `levels` as brightness: uint8."""
    return (values.astype(np.float32) * 255 / (levels - 1)).round().astype(np.uint8)
