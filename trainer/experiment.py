"""A model, a problem and a run: what the schedules train and evaluate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

import tensorflow as tf
from absl import logging

from t2tp import mtf, problems, registry
from t2tp.explanation import Explanation
from t2tp.hparam import HParams
from t2tp.mesh.program import Feature
from t2tp.problems.languagemodel import LanguageModelProblem
from t2tp.problems.metrics import compute, needed_sums
from t2tp.problems.problem import Problem
from t2tp.problems.stream import FeatureSpec
from t2tp.trainer import run_files
from t2tp.trainer.checkpointing import CheckpointMismatchError
from t2tp.trainer.decoding import prediction_features, sample
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks import EvaluationHook, Hook
from t2tp.trainer.inputs import Inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_files import OtherRunError
from t2tp.trainer.summaries import SummaryWriter
from t2tp.trainer.together import check_same

# What may be different in each process of a run.
_OWN_FLAGS = ("data_digest", "data_dir", "output_dir", "process_id", "tmp_dir")

# schedule -> what it builds programs for
SCHEDULES = {
    "train": (ModeKeys.TRAIN,),
    "evaluate": (ModeKeys.EVAL,),
    "train_and_evaluate": (ModeKeys.TRAIN, ModeKeys.EVAL),
    "predict": (ModeKeys.PREDICT,),
}


class Experiment:
    """A run of a registered model on a registered problem.

    ```python
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse("mesh_shape=data:2;model:2")
    experiment = Experiment(
        "transformer_lm", "languagemodel_python_stdlib", hparams,
        RunConfig.of(hparams, output_dir="/tmp/run"), data_dir="/tmp/data", train_steps=300,
    )
    metrics = experiment.train_and_evaluate()
    ```

    Of several processes each makes the same experiment and calls the same methods; process 0 alone
    writes the run's files.

    Attributes:
      estimator: the `Estimator`.
      problem: the problem.
      hparams: the run's hparams.
      data_dir: where the problem's data were prepared.
    """

    def __init__(
        self,
        model: str,
        problem: str,
        hparams: HParams,
        config: RunConfig,
        *,
        data_dir: str | PathLike[str],
        problem_options: str = "",
        train_steps: int,
        eval_steps: int = -1,
        local_eval_frequency: int = 1000,
        flags: Mapping[str, Any] | None = None,
    ) -> None:
        """Looks everything up; builds and writes nothing yet.

        Args:
          model: name of a registered model.
          problem: name of a problem; see `problems.find`.
          hparams: of the model and its training.
          config: how the run is carried out.
          data_dir: where the problem's data were prepared.
          problem_options: the problem's options.
          train_steps: of the whole run.
          eval_steps: batches of an evaluation; 0 or -1: all.
          local_eval_frequency: steps from one evaluation to the next; 0: only one at the end.
          flags: what else to write into the run's `flags.json`.

        Raises:
          UnknownNameError: there is no such model or problem.
          LayoutError: mesh shape or layout cannot be read.
          OtherRunError: `config.output_dir` holds a run of another model or problem.
          FileNotFoundError: the data are not prepared; says the command that does it.
          ValueError: the data are damaged, or a number cannot be.
        """
        _check_at_least(0, train_steps=train_steps, local_eval_frequency=local_eval_frequency)
        _check_at_least(-1, eval_steps=eval_steps)
        self.problem: Problem = problems.find(problem, problem_options)
        model_class = registry.model(model)
        self.hparams = hparams
        self.data_dir = data_dir
        self._saved = run_files.read(config.output_dir)
        if self._saved is not None:
            run_files.check_same_run(config.output_dir, self._saved, model, problem)
        model_fn = model_fn_of(model_class, self.problem.vocab_sizes(data_dir), train_steps)
        self.estimator = Estimator(model_fn, config, hparams)
        self._train_inputs = self._inputs("train")
        self._eval_inputs = self._inputs("validation")
        self._train_steps = train_steps
        self._eval_steps = eval_steps
        self._local_eval_frequency = local_eval_frequency
        self._is_checked = False
        self._is_warned = False
        self._flags: dict[str, Any] = {
            **(flags or {}),
            **asdict(config),
            "model": model,
            "problem": problem,
            "problem_options": problem_options,
            "data_dir": str(data_dir),
            "data_digest": self.problem.digest(data_dir),
            "train_steps": train_steps,
            "eval_steps": eval_steps,
            "local_eval_frequency": local_eval_frequency,
        }

    def _check_same_data(self) -> None:
        """Refuses to go on with other data than the run has been trained on."""
        before = self._saved and self._saved.flags.get("data_digest")
        if before and before != self._flags["data_digest"]:
            raise OtherRunError(
                f"the data of {self.problem.name} in {self.data_dir} are not those that the run in"
                f" {self.estimator.config.output_dir} was trained on: they were made again, from"
                " other texts or with other options; choose another output_dir or the old data_dir"
            )

    def build(self, schedule: str) -> None:
        """Builds what a schedule needs and restores the newest checkpoint; writes nothing.

        Calling it is not needed, but shows what cannot work before any work is done.

        Raises:
          LayoutError: the layout cannot work for the model.
          CheckpointMismatchError: the run's variables are others than the model's.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          OtherProcessesError: another process was started for something else.
          OtherRunError: the run was trained on other data.
        """
        if ModeKeys.TRAIN in SCHEDULES[schedule]:
            self._check_same_data()
        self._check_same()
        for mode in SCHEDULES[schedule]:
            kinds = {
                ModeKeys.TRAIN: self._train_inputs.kinds,
                ModeKeys.EVAL: self._eval_inputs.kinds,
                ModeKeys.PREDICT: [prediction_features(self.estimator.layout, self.hparams)],
            }[mode]
            try:
                for features in kinds:
                    self.estimator.build(mode, features)
            except CheckpointMismatchError as error:
                raise CheckpointMismatchError(f"{error}{self._changed_hparams()}") from error

    def describe(self) -> str:
        """Says, in lines, on which devices what is trained, and where it is written."""
        config, cluster = self.estimator.config, self.estimator.connect()
        learned, kept = self.estimator.parameter_counts()
        return "\n".join(
            [
                f"mesh {config.mesh_shape or 'of one device'}, layout {config.layout or '(none)'}",
                cluster.describe(),
                f"{self._flags['model']} on {self.problem.name}: {learned:,} parameters"
                + (f", and {kept:,} numbers of the optimizer" if kept else ""),
                f"the run is in {config.output_dir}",
            ]
        )

    def explain(self) -> Explanation:
        """Says how the training program lies on its mesh; takes no devices, and writes nothing.

        Raises:
          LayoutError: the layout cannot work for the model.
        """
        return self.estimator.explain(ModeKeys.TRAIN, self._train_inputs.features)

    def train(self) -> None:
        """Trains to `train_steps`, from the newest checkpoint on.

        Raises:
          TrainingInterrupted: by SIGINT or SIGTERM, after the step was saved.
        """
        self._train("train", [])

    def train_and_evaluate(self) -> dict[str, float]:
        """Trains like `train`, evaluates every `local_eval_frequency` steps and at the end.

        Returns:
          the problem's metrics at the end.

        Raises:
          TrainingInterrupted: by SIGINT or SIGTERM, after the step was saved.
        """
        every = self._local_eval_frequency
        hooks = [EvaluationHook(every, self.evaluate)] if every else []
        self._train("train_and_evaluate", hooks)
        return self.evaluate()

    def evaluate(self) -> dict[str, float]:
        """Evaluates the present values, or the newest checkpoint's, on the validation split.

        Returns:
          the problem's metrics.
        """
        self.build("evaluate")
        sums = self.estimator.evaluate(self._eval_inputs, self._eval_steps)
        metrics = self._metrics(sums)
        step = self.estimator.steps_done
        if self.estimator.connect().leads:
            summaries = SummaryWriter(os.path.join(self.estimator.config.output_dir, "eval"))
            summaries.write(step, metrics)
            summaries.close()
        said = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        logging.info("evaluation at step %d  %s", step, said)
        return metrics

    def predict(self, prompt: str, length: int, temperature: float) -> str:
        """Continues a text with the newest checkpoint's values.

        Args:
          prompt: the text.
          length: most tokens to add; an end of document ends the sample too.
          temperature: 0: the most probable token each time; 1: as the model says.

        Returns:
          the continuation, without the prompt.

        Raises:
          UsageError: the problem is not about text.
          ValueError: a number is negative.
        """
        if not isinstance(self.problem, LanguageModelProblem):
            raise UsageError(
                f"{self.problem.name} is no language model: there is no text to continue"
            )
        self.build("predict")
        tokens = sample(
            self.estimator,
            self.hparams,
            self.problem.encode(self.data_dir, prompt),
            length,
            vocab_size=self.problem.vocab_size(self.data_dir),
            temperature=temperature,
        )
        return self.problem.decode(self.data_dir, tokens)

    def _metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The problem's metrics, but for those whose sums the model does not count."""
        names = self.problem.metric_names
        given = [name for name in names if needed_sums([name]) <= sums.keys()]
        if not given:
            return self.problem.metrics(sums)  # which says what is missing
        if len(given) < len(names) and not self._is_warned:
            absent = ", ".join(name for name in names if name not in given)
            missing = ", ".join(sorted(needed_sums(names) - sums.keys()))
            logging.warning(
                "not evaluated: %s; the model %s does not count %s",
                absent,
                self._flags["model"],
                missing,
            )
            self._is_warned = True
        return compute(given, sums)

    def _train(self, schedule: str, hooks: Sequence[Hook]) -> None:
        self.build(schedule)
        output_dir, cluster = self.estimator.config.output_dir, self.estimator.connect()
        if cluster.leads:
            run_files.write(output_dir, self.hparams, self._flags)
        cluster.barrier("run files")
        run_files.check_shared(output_dir)
        done = self.estimator.steps_done
        if done:
            logging.info("going on from the checkpoint of step %d", done)
        self.estimator.train(self._train_inputs, self._train_steps, hooks)

    def _inputs(self, split: str) -> Inputs:
        """The batches of a split, with the names of their dimensions."""
        stream = self.problem.stream(
            self.data_dir,
            split,
            batch_size=self.hparams.batch_size,
            length=self.hparams.max_length,
            seed=self.estimator.config.random_seed,
        )
        specs = self.problem.features(self.hparams.batch_size, self.hparams.max_length)
        kinds = [
            {name: _feature(spec, sizes[name]) for name, spec in specs.items()}
            for sizes in stream.shapes()
        ]
        return Inputs(kinds[0], stream, self.problem.counts, kinds[1:])

    def _check_same(self) -> None:
        """Compares what this process was started for with what the others were, once."""
        if not self._is_checked:
            flags = {k: v for k, v in self._flags.items() if k not in _OWN_FLAGS}
            data = {f"data of {self.problem.name}": self._flags["data_digest"]}
            check_same(self.estimator.connect(), {**self.hparams.values(), **flags, **data})
            self._is_checked = True

    def _changed_hparams(self) -> str:
        """The hparams that are not the saved run's, as the end of a sentence."""
        if self._saved is None:
            return ""
        changed = [
            f"{name}={mine!r} (saved: {saved!r})"
            for name, mine, saved in self.hparams.diff(self._saved.hparams)
        ]
        return (
            f"; hparams that differ from the saved run's: {', '.join(changed)}" if changed else ""
        )


def _feature(spec: FeatureSpec, sizes: Sequence[int]) -> Feature:
    """A feature of batches of a kind, in named dimensions."""
    dims = [mtf.Dimension(name, size) for name, size in zip(spec.dimensions, sizes, strict=True)]
    return Feature(mtf.Shape(dims), tf.as_dtype(spec.dtype))


def _check_at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} is {number}, and must be at least {least}")
