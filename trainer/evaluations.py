"""Evaluates on a split of a problem, and writes down what came of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping

from absl import logging

from t2tp.checkpoint import Goal
from t2tp.problems.metrics import compute, possible, why_not
from t2tp.problems.problem import Problem
from t2tp.trainer.early_stopping import EarlyStopping
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.evaluation_record import EvaluationRecord
from t2tp.trainer.inputs import Inputs
from t2tp.trainer.samples import Samples
from t2tp.trainer.summaries import SummaryWriter


class SplitEvaluation:
    """The evaluations of a run on one split, in a folder of the run's.

    Attributes:
      inputs: the split, once.
      record: the evaluations so far, also of earlier processes.
      summaries: where TensorBoard finds them.
    """

    def __init__(
        self,
        estimator: Estimator,
        problem: Problem,
        inputs: Inputs,
        steps: int,
        folder: str,
        model: str,
        finds_best: bool = True,
        samples: Samples | None = None,
    ) -> None:
        """Evaluates nothing yet.

        Args:
          estimator: of the run.
          problem: whose metrics these are.
          inputs: the split, once.
          steps: how many batches; 0 or -1: all.
          folder: name of the folder for the record and the events.
          model: its name, for messages.
          finds_best: whether these evaluations say which checkpoint is best.
          samples: what is decoded with each of them.
        """
        self.inputs = inputs
        self.record = EvaluationRecord(os.path.join(estimator.config.output_dir, folder))
        self._estimator = estimator
        self._problem = problem
        self._steps = steps
        self._folder = folder
        self.summaries = SummaryWriter(os.path.join(estimator.config.output_dir, folder))
        self._model = model
        self._finds_best = finds_best
        self._samples = samples
        self._is_warned = False
        self._newest: tuple[int, dict[str, float]] | None = None

    def resume(self) -> None:
        """Says that a training goes on from here, which will evaluate later steps again."""
        self.summaries.resume(self._estimator.steps_done)

    def run(self) -> dict[str, float]:
        """Evaluates the present values, logs and writes the problem's metrics, and returns them."""
        metrics = self.measure()
        step = self._estimator.steps_done
        if self._finds_best:
            self._estimator.record_metrics(metrics)
        if self._estimator.connect().leads:
            self.summaries.write(step, metrics)
            self.record.add(step, metrics)
            self._estimator.log.write("evaluation", step, {"on": self._folder, **metrics})
            self._estimator.track(step, {f"{self._folder}/{n}": v for n, v in metrics.items()})
        if self._samples is not None:
            leads = self._estimator.connect().leads
            self._samples.write(step, self.summaries if leads else None)
        said = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        logging.info("evaluation at step %d  %s", step, said)
        self._newest = (step, metrics)
        return metrics

    def measure(self) -> dict[str, float]:
        """The problem's metrics for the present values; nothing is written."""
        return self._metrics(self._estimator.evaluate(self.inputs, self._steps))

    def run_once(self) -> dict[str, float]:
        """The metrics of the present values, evaluated only if `run` has not just done it."""
        if self._newest is not None and self._newest[0] == self._estimator.steps_done:
            return self._newest[1]
        return self.run()

    def on_record(self) -> dict[int, dict[str, float]]:
        """Step -> metrics, as process 0 has them on record; the same in all processes."""
        cluster = self._estimator.connect()
        mine = list(self.record.by_step().items()) if cluster.leads else []
        return dict(json.loads(cluster.agree("evaluations", json.dumps(mine))))

    def say_best(self, goal: Goal) -> None:
        """Logs at which step the metric was best, if there were several evaluations."""
        found = [
            (step, metrics[goal.metric])
            for step, metrics in self.record.by_step().items()
            if goal.metric in metrics
        ]
        numbers = [each for each in found if not math.isnan(each[1])]
        if len(found) < 2 or not numbers:
            return
        step, best = (min if goal.is_least else max)(numbers, key=lambda each: each[1])
        logging.info(
            "best %s %.4f at step %d, of %d evaluations", goal.metric, best, step, len(found)
        )

    def plateau(self, stopping: EarlyStopping) -> str:
        """What process 0's record says of early stopping; "" if training goes on."""
        cluster = self._estimator.connect()
        found = ""
        if cluster.leads:
            evaluations = self.record.by_step(up_to=self._estimator.steps_done)
            lacking = [each for each in evaluations.values() if stopping.metric not in each]
            if lacking:
                raise UsageError(
                    f"early stopping by {stopping.metric}: the model's evaluations give only"
                    f" {', '.join(lacking[0])}"
                )
            found = stopping.plateau(evaluations)
        return cluster.agree("early stopping", found)

    def _metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The problem's metrics, but for those that the model's sums do not make."""
        names = self._problem.metric_names
        given = possible(names, sums)
        if not given:
            return self._problem.metrics(sums)  # which says what is missing
        absent = [name for name in names if name not in given]
        if absent and not self._is_warned:
            reason = why_not(absent, sums, f"the model {self._model}")
            logging.warning("not evaluated: %s; %s", ", ".join(absent), reason)
            self._is_warned = True
        return compute(given, sums)
