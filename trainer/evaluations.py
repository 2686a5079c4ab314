"""Evaluates on a split of a problem and records the metrics.

With `--eval_samples`, TensorBoard also shows texts and images that the model generates.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from t2tp.checkpoint import BestMetric
from t2tp.problems.metrics import compute, possible, reported, why_not
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.inference.run_decoder import RunDecoder, check_writes, codec_for
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from t2tp.trainer.run_spec import RunSpec

# Max tokens of a language model's prompt, and of its continuation.
_MOST_TOKENS = 64


class SplitEvaluation:
    """The evaluations of a run on one split, in a subdirectory of the run.

    Attributes:
      split: name of the split.
      inputs: one pass over the split.
      record: the evaluations so far, including evaluations before the run was resumed.
      summaries: the evaluations' TensorBoard events.
    """

    def __init__(
        self, estimator: Estimator, spec: RunSpec, split: str, samples: DecodedSamples | None = None
    ) -> None:
        """Prepares the record and the summaries without evaluating.

        `samples` are decoded at each evaluation.
        """
        self.split = split
        self.inputs = spec.evaluation_inputs(split)
        self._directory = "eval" if split == "validation" else f"eval_{split}"
        path = os.path.join(estimator.config.output_dir, self._directory)
        self.record = EvaluationRecord(path)
        self.summaries = SummaryWriter(path)
        self._estimator = estimator
        self._spec = spec
        # The best checkpoint is not that with the best fit to the training data.
        self._finds_best = split != spec.problem.splits[0]
        self._samples = samples
        self._is_warned = False
        self._latest: tuple[int, dict[str, float]] | None = None

    def run(self) -> dict[str, float]:
        """Evaluates the current variables; logs, records and returns the problem's metrics."""
        metrics = self.measure()
        step = self._estimator.steps_done
        if self._finds_best:
            self._estimator.record_metrics(metrics)
        is_main = self._estimator.connect().is_main_process
        if is_main:
            self.summaries.write(step, metrics)
            self.record.add(step, metrics)
            self._estimator.log.write("evaluation", step, {"on": self._directory, **metrics})
        if self._samples is not None:
            self._samples.write(step, self.summaries if is_main else None)
        text = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        logging.info("evaluation at step %d  %s", step, text)
        self._latest = (step, metrics)
        return metrics

    def measure(self) -> dict[str, float]:
        """Returns the problem's metrics for the current variables; records nothing.

        Warns once about metrics that the model's sums do not allow.
        """
        sums = self._estimator.evaluate(self.inputs, self._spec.evaluation.eval_steps)
        names = self._spec.problem.metric_names
        computable = possible(names, sums)
        if not computable:
            return compute(names, sums)  # Raises an error that names the missing sums.
        absent = [name for name in names if name not in computable]
        if absent and not self._is_warned:
            reason = why_not(absent, sums, f"the model {self._spec.model}")
            logging.warning("not evaluated: %s; %s", ", ".join(absent), reason)
            self._is_warned = True
        return reported(computable, sums)

    def run_once(self) -> dict[str, float]:
        """Returns the metrics of the last `run` if it was at the current step; else calls `run`."""
        if self._latest is not None and self._latest[0] == self._estimator.steps_done:
            return self._latest[1]
        return self.run()

    def on_record(self) -> dict[int, dict[str, float]]:
        """Returns step -> metrics from the record of process 0, the same in all processes."""
        cluster = self._estimator.connect()
        record = list(self.record.by_step().items()) if cluster.is_main_process else []
        return dict(cluster.process_broadcast("evaluations", record))

    def log_best(self, goal: BestMetric) -> None:
        """Logs the step with the best metric, if there were several evaluations."""
        values = [
            (step, metrics[goal.metric])
            for step, metrics in self.record.by_step().items()
            if goal.metric in metrics
        ]
        numbers = [each for each in values if not math.isnan(each[1])]
        if len(values) < 2 or not numbers:
            return
        step, best = (min if goal.is_min else max)(numbers, key=lambda each: each[1])
        logging.info(
            "best %s %.4f at step %d, of %d evaluations", goal.metric, best, step, len(values)
        )

    def plateau(self) -> str:
        """Returns the reason to stop early, from the record of process 0; "" to continue.

        Raises:
          UsageError: an evaluation in the record lacks the metric.
        """
        stopping = self._spec.evaluation.early_stopping
        if stopping is None:
            return ""
        # A run that resumed from an earlier checkpoint has yet to train the later steps again.
        last_step = self._estimator.steps_done
        evaluations = {step: x for step, x in self.on_record().items() if step <= last_step}
        incomplete = [each for each in evaluations.values() if stopping.metric not in each]
        if incomplete:
            raise UsageError(
                f"early stopping by {stopping.metric}: the model's evaluations give only"
                f" {', '.join(incomplete[0])}"
            )
        return stopping.plateau(evaluations)


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
