"""`--eval_samples`: texts and images that the model generates, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.inference.run_decoder import RunDecoder, check_writes, codec_for

if TYPE_CHECKING:
    from t2tp.trainer.run_spec import RunSpec

# Max tokens of a language model's prompt, and of its continuation.
_MOST_TOKENS = 64


class DecodedSamples:
    """Shows the first examples of a split next to the outputs of the model.

    For a problem with inputs, the columns are inputs, targets and output. For a language model,
    the columns are the prompt, the text that follows it in the split, and the model's continuation.
    For image generation, images of the split and of the model are shown.
    """

    def __init__(self, decoder: RunDecoder, spec: RunSpec, split: str, count: int) -> None:
        """Checks, without decoding, that the model can generate samples.

        Raises:
          UsageError: the model is not autoregressive, or the problem has nothing to decode.
        """
        check_writes(spec.model)
        if spec.problem.generated_images is None:
            codec_for(spec.problem, spec.data_dir)
        self._decoder = decoder
        self._spec = spec
        self._split = split
        self._count = count

    def write(self, step: int, summaries: SummaryWriter | None) -> None:
        """Decodes with the current variables; process 0, which has `summaries`, writes the results.

        The other processes only decode.
        """
        images = self._spec.problem.generated_images
        if images is not None:
            pixels = {"targets": self._rows(), "samples": self._decoder.images(self._count)}
            for name, values in pixels.items():
                if summaries is not None:
                    summaries.images(step, name, images.brightness(values))
        else:
            names, rows = (
                self._pairs() if self._spec.problem.reads_inputs else self._continuations()
            )
            if summaries is not None:
                summaries.text(step, "samples", table(names, rows))
        if summaries is not None:
            summaries.flush()

    def _rows(self) -> np.ndarray:
        """Returns the targets of the examples."""
        spec = self._spec
        source = spec.problem.examples(spec.data_dir, self._split, spec.hparams.max_length)
        rows = np.arange(min(self._count, len(source)))
        return np.asarray(source.read("targets", rows, (slice(None),)))

    def _pairs(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        rows = self._decoder.split(self._split, self._count)
        texts = [(row.inputs, row.targets, row.outputs[0].text) for row in rows]
        return ("inputs", "targets", "output"), texts

    def _continuations(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        codec = codec_for(self._spec.problem, self._spec.data_dir)
        size = min(self._spec.hparams.max_length // 2, _MOST_TOKENS)
        rows_of_text = []
        for row in self._rows():
            prompt, continuation = codec.decode(row[:size].tolist()), row[size : 2 * size].tolist()
            output = self._decoder.text(prompt, size)
            rows_of_text.append((prompt, codec.decode(continuation), output))
        return ("prompt", "text", "continuation"), rows_of_text


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table that shows texts literally."""
    lines = [names, ["---"] * len(names), *([_escaped(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    """Escapes the characters that Markdown or HTML would interpret."""
    for special in "\\`*_[]#":
        text = text.replace(special, f"\\{special}")
    for special, escaped in {"&": "&amp;", "<": "&lt;", "|": "&#124;", "\n": "<br>"}.items():
        text = text.replace(special, escaped)
    return text
