"""A model, a problem and a run: what the schedules train and evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

from absl import logging

from t2tp import checkpoint, problems, registry
from t2tp.checkpoint import Goal, UnusableCheckpointError
from t2tp.decoding import DecodeOptions
from t2tp.explanation import Explanation
from t2tp.hparam import HParams
from t2tp.mesh.program import Feature
from t2tp.nearest import nearest
from t2tp.problems.images import ImageGenerationProblem
from t2tp.problems.problem import Problem
from t2tp.trainer import run_files
from t2tp.trainer.checkpointing import CheckpointMismatchError, checkpoint_folder, find
from t2tp.trainer.decoding import RunDecoder, check_writes
from t2tp.trainer.early_stopping import EarlyStopping
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.evaluations import SplitEvaluation
from t2tp.trainer.following import follow
from t2tp.trainer.hooks import EvaluationHook, Hook
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.problem_inputs import evaluation_inputs, training_inputs
from t2tp.trainer.rehearsal import rehearse
from t2tp.trainer.restoring import check_same_save
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.samples import Samples
from t2tp.trainer.together import OtherProcessesError, check_same

# What may be different in each process of a run.
_OWN_FLAGS = ("data_digest", "data_dir", "output_dir", "process_id", "t2t_usr_dir", "tmp_dir")

# schedule -> what it builds programs for
SCHEDULES = {
    "train": (ModeKeys.TRAIN,),
    "evaluate": (ModeKeys.EVAL,),
    "evaluate_on_train_data": (ModeKeys.EVAL,),
    "train_and_evaluate": (ModeKeys.TRAIN, ModeKeys.EVAL),
    "continuous_train_and_eval": (ModeKeys.TRAIN, ModeKeys.EVAL),
    "continuous_eval": (ModeKeys.EVAL,),
    "predict": (ModeKeys.PREDICT,),
    "test": (),
}

# Those that evaluate again and again, and can stop early.
STOPPING_SCHEDULES = ("train_and_evaluate", "continuous_train_and_eval", "continuous_eval")


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
        eval_split: str = "validation",
        eval_timeout_mins: float = 240.0,
        eval_samples: int = 0,
        early_stopping: EarlyStopping | None = None,
        decode_options: DecodeOptions | None = None,
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
          eval_split: the split that is evaluated on.
          eval_timeout_mins: how many minutes `continuous_eval` waits for the next checkpoint.
          eval_samples: how many examples are decoded at each evaluation, for TensorBoard.
          early_stopping: when evaluations end the training; by default they do not.
          decode_options: how `predict` decodes; by default beam search of width 4.
          flags: what else to write into the run's `flags.json`.

        Raises:
          UnknownNameError: there is no such model or problem.
          LayoutError: mesh shape or layout cannot be read.
          OtherRunError: `config.output_dir` holds a run of another model or problem.
          FileNotFoundError: the data are not prepared; says the command that does it.
          ValueError: the data are damaged, or a number cannot be.
        """
        _check_at_least(0, train_steps=train_steps, local_eval_frequency=local_eval_frequency)
        _check_at_least(0, eval_samples=eval_samples)
        _check_at_least(-1, eval_steps=eval_steps)
        _check_at_least(0, eval_timeout_mins=eval_timeout_mins)
        self.problem: Problem = problems.find(problem, problem_options)
        model_class = registry.model(model)
        self.hparams = hparams
        self.data_dir = data_dir
        self._saved = run_files.read(config.output_dir)
        if self._saved is not None:
            run_files.check_same_run(config.output_dir, self._saved, model, problem)
            # Runs did not say it before there was a second one.
            self.problem.use_data_order(self._saved.flags.get("data_order", 1))
        self._early_stopping = early_stopping
        if early_stopping is not None:
            early_stopping.check(self.problem.metric_names, local_eval_frequency)
        self._model = model
        self._decode_options = decode_options or DecodeOptions()
        if isinstance(self.problem, ImageGenerationProblem):  # No value of a pixel ends a picture.
            self._decode_options = replace(self._decode_options, eos_id=-1)
        model_fn = model_fn_of(
            model_class, self.problem.vocab_sizes(data_dir), train_steps, self._decode_options
        )
        self.estimator = Estimator(model_fn, config, hparams)
        seed = config.random_seed
        self._train_inputs = training_inputs(self.problem, data_dir, hparams, seed)
        self._evaluations: dict[str, SplitEvaluation] = {}
        self._eval_split = eval_split
        self._train_steps = train_steps
        self._eval_steps = eval_steps
        self._local_eval_frequency = local_eval_frequency
        self._eval_timeout_mins = eval_timeout_mins
        self._eval_samples = eval_samples
        self._check_best_metric()
        self._is_checked = False
        self._evaluation(eval_split)  # Whether there is such a split is known from the start.
        self._flags: dict[str, Any] = {
            **(flags or {}),
            **asdict(config),
            "model": model,
            "problem": problem,
            "problem_options": problem_options,
            "data_dir": str(data_dir),
            "data_digest": self.problem.digest(data_dir),
            "data_order": self.problem.data_order,
            "train_steps": train_steps,
            "eval_steps": eval_steps,
            "local_eval_frequency": local_eval_frequency,
            "eval_split": eval_split,
        }

    def build(self, schedule: str) -> None:
        """Builds what a schedule needs and restores the newest checkpoint; writes nothing.

        Calling it is not needed, but shows what cannot work before any work is done. For
        `continuous_eval` it waits for a first checkpoint; for `test` it builds nothing.

        Raises:
          LayoutError: the layout cannot work for the model.
          CheckpointMismatchError: the run's variables are others than the model's.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          OtherProcessesError: another process was started for something else.
          OtherRunError: the run, or a checkpoint that is named, was trained on other data.
        """
        self._check_same_data(self._config)
        self._check_same()
        if schedule == "continuous_eval":
            self._await_a_checkpoint()
        for mode in SCHEDULES[schedule]:
            try:
                for features in self._kinds(mode, schedule):
                    self.estimator.build(mode, features)
            except CheckpointMismatchError as error:
                raise CheckpointMismatchError(f"{error}{self._changed_hparams()}") from error

    def _kinds(self, mode: ModeKeys, schedule: str) -> Sequence[Mapping[str, Feature]]:
        """The features of the programs that a schedule needs of a mode."""
        if mode == ModeKeys.TRAIN:
            return self._train_inputs.kinds
        if mode == ModeKeys.EVAL:
            return self._evaluation(self._split_of(schedule)).inputs.kinds
        check_writes(self._model)
        return [self._decoder.smallest_features]

    def describe(self) -> str:
        """Says, in lines, on which devices what is trained, and where it is written."""
        config, cluster = self.estimator.config, self.estimator.connect()
        learned, kept = self.estimator.parameter_counts()
        sizes = f": {learned:,} parameters" if learned else ""
        if kept:
            sizes += f", and {kept:,} numbers of the optimizer"
        return "\n".join(
            [
                f"mesh {config.mesh_shape or 'of one device'}, layout {config.layout or '(none)'}",
                cluster.describe(),
                f"{self._model} on {self.problem.name}{sizes}",
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
        every, evaluation = self._local_eval_frequency, self._evaluation(self._eval_split)

        def plateau() -> str:
            return evaluation.plateau(self._early_stopping) if self._early_stopping else ""

        hooks = [EvaluationHook(every, evaluation.run, plateau)] if every else []
        self._train("train_and_evaluate", hooks, plateau)
        metrics = evaluation.run_once()
        evaluation.say_best(self._goal())
        return metrics

    def continuous_train_and_eval(self) -> dict[str, float]:
        """The name of tensor2tensor's default schedule; here the same as `train_and_evaluate`."""
        return self.train_and_evaluate()

    def evaluate(self) -> dict[str, float]:
        """Evaluates the present values, or the newest checkpoint's, on the evaluation split.

        Returns:
          the problem's metrics.
        """
        self.build("evaluate")
        return self._evaluation(self._eval_split).run()

    def measure(self, path: str | PathLike[str]) -> tuple[int, dict[str, float]]:
        """Evaluates any checkpoint of such a model on the evaluation split, and writes nothing.

        Args:
          path: of the checkpoint; see `checkpointing.find`.

        Returns:
          its step, and the problem's metrics.

        Raises:
          CheckpointMismatchError: the checkpoint has other variables than the model.
          FileNotFoundError, UnusableCheckpointError: it is not there, or damaged.
          OtherRunError: it was trained on other data.
        """
        self.build("evaluate")
        self._check_same_data(replace(self._config, checkpoint_path=str(path)))
        saved = find(str(path))
        check_same_save(saved, self.estimator.connect())
        self.estimator.restore(saved)
        return self.estimator.steps_done, self._evaluation(self._eval_split).measure()

    def evaluate_on_train_data(self) -> dict[str, float]:
        """Evaluates like `evaluate`, on the split that is trained on: each example once, in order.

        Returns:
          the problem's metrics.
        """
        self.build("evaluate_on_train_data")
        return self._evaluation(self.problem.splits[0]).run()

    def continuous_eval(self) -> dict[int, dict[str, float]]:
        """Evaluates the checkpoints of a run that another process trains, each once, as they come.

        It ends when the checkpoint of `train_steps` is evaluated, when none has come for
        `eval_timeout_mins`, or with early stopping. Started again, it leaves out what it has on
        record.

        Returns:
          step -> the problem's metrics, of all evaluations on record.
        """
        self.build("continuous_eval")
        evaluation, cluster = self._evaluation(self._eval_split), self.estimator.connect()
        known = evaluation.on_record()
        if max(known, default=-1) >= self._train_steps:
            return known
        for step in follow(self._checkpoints, cluster, known, self._eval_timeout_mins):
            if not self._restore(step):
                continue
            evaluation.run()
            stopping = self._early_stopping and evaluation.plateau(self._early_stopping)
            if stopping:
                logging.info("stopping after the checkpoint of step %d: %s", step, stopping)
            if stopping or step >= self._train_steps:
                break
        return evaluation.on_record()

    def test(self) -> dict[str, float]:
        """Does a few steps of everything, in a scratch folder; leaves nothing behind.

        Returns:
          the problem's metrics after three steps.
        """
        return rehearse(self._rehearsal, self.estimator.connect(), self._config.output_dir)

    def predict(self, text: str, length: int | None = None) -> str:
        """Decodes a text with the newest checkpoint's values, as `decode_options` say.

        Args:
          text: what a language model goes on from; else the inputs.
          length: most symbols to write; an end ends the text too. By default as `decode_options`
            say.

        Returns:
          what was written, for a language model without the text it goes on from.

        Raises:
          UsageError: the model does not write, or the problem is not about text.
          ValueError: the text is too long for the model.
        """
        self.build("predict")
        return self._decoder.text(text, length)

    def _goal(self) -> Goal:
        """By what an evaluation is the best one; by the loss, where nothing is said."""
        if self._config.keep_best_metric:
            return Goal.parse(self._config.keep_best_metric)
        if self._early_stopping is not None:
            return Goal(self._early_stopping.metric, self._early_stopping.minimize)
        return Goal("loss", True)

    @property
    def _decoder(self) -> RunDecoder:
        return RunDecoder(
            self.estimator, self.problem, self.data_dir, self.hparams, self._decode_options
        )

    @property
    def _config(self) -> RunConfig:
        return self.estimator.config

    @property
    def _checkpoints(self) -> Path:
        return checkpoint_folder(self._config.output_dir)

    def _evaluation(self, split: str) -> SplitEvaluation:
        """The evaluations on a split."""
        if split not in self._evaluations:
            is_trained_on = split == self.problem.splits[0]
            self._evaluations[split] = SplitEvaluation(
                self.estimator,
                self.problem,
                evaluation_inputs(self.problem, self.data_dir, self.hparams, split),
                self._eval_steps,
                "eval" if split == "validation" else f"eval_{split}",
                self._model,
                finds_best=not is_trained_on,
                samples=self._samples(split) if self._eval_samples else None,
            )
        return self._evaluations[split]

    def _samples(self, split: str) -> Samples:
        """What is decoded when a split is evaluated."""
        return Samples(
            self._decoder,
            self.problem,
            self.data_dir,
            model=self._model,
            split=split,
            count=self._eval_samples,
            length=self.hparams.max_length,
        )

    def _split_of(self, schedule: str) -> str:
        """The split that a schedule evaluates on."""
        on_train_data = schedule == "evaluate_on_train_data"
        return self.problem.splits[0] if on_train_data else self._eval_split

    def _rehearsal(self, output_dir: str, train_steps: int) -> Experiment:
        """This experiment in another folder, with few steps."""
        config = replace(
            self._config,
            output_dir=output_dir,
            checkpoint_path="",
            save_checkpoints_steps=1,
            save_checkpoints_secs=None,
            log_step_count_steps=1,
            log_json="",
            histogram_steps=None,
            profile_steps="",
        )
        return Experiment(
            self._model,
            self._flags["problem"],
            self.hparams,
            config,
            data_dir=self.data_dir,
            problem_options=self._flags["problem_options"],
            train_steps=train_steps,
            eval_steps=2,
            eval_split=self._eval_split,
        )

    def _await_a_checkpoint(self) -> None:
        """Waits until the run that is followed has saved its first checkpoint."""
        cluster, minutes = self.estimator.connect(), self._eval_timeout_mins
        if next(follow(self._checkpoints, cluster, (), minutes), None) is None:
            raise FileNotFoundError(
                f"{self._config.output_dir} holds no finished checkpoint, and none has come in"
                f" {minutes:g} minutes"
            )

    def _restore(self, step: int) -> bool:
        """Restores a checkpoint of the run; False if it is gone or damaged, which is said."""
        problem, save_id = "", ""
        try:
            saved = checkpoint.Checkpoint(checkpoint.step_folder(self._checkpoints, step))
            save_id = saved.save_id
            self.estimator.restore(saved)
        except UnusableCheckpointError as error:
            problem = str(error)
        said = self.estimator.connect().exchange("restored", json.dumps([problem, save_id]))
        problems, save_ids = zip(*map(json.loads, said), strict=True)
        for each in filter(None, problems):
            logging.warning("not evaluated: %s", each)
            return False
        if len(set(save_ids)) > 1:
            raise OtherProcessesError(
                f"the processes have different checkpoints of step {step} in"
                f" {self._config.output_dir}, which must be one folder that all of them share"
            )
        return True

    def _check_best_metric(self) -> None:
        """Refuses to look for the best checkpoint by what no evaluation finds."""
        if self._config.keep_best_metric:
            metric, names = (
                Goal.parse(self._config.keep_best_metric).metric,
                self.problem.metric_names,
            )
            if metric not in names:
                known = nearest(metric, names, f"metrics of {self.problem.name}")
                raise ValueError(f"the best checkpoint by the unknown metric {metric!r}: {known}")

    def _train(
        self, schedule: str, hooks: Sequence[Hook], plateau: Callable[[], str] = str
    ) -> None:
        output_dir, cluster = self._config.output_dir, self.estimator.connect()
        run_files.check_known(output_dir, run_files.read(output_dir))
        self.build(schedule)
        stopped = plateau()
        if stopped:
            logging.info("stopped early at step %d: %s", self.estimator.steps_done, stopped)
            return
        with self.estimator.lock():
            if cluster.leads:
                run_files.write(output_dir, self.hparams, self._flags)
            done = self.estimator.steps_done
            if done:
                logging.info("going on from the checkpoint of step %d", done)
            if ModeKeys.EVAL in SCHEDULES[schedule]:
                self._evaluation(self._eval_split).resume()
            self.estimator.train(self._train_inputs, self._train_steps, hooks)

    def _check_same_data(self, config: RunConfig) -> None:
        """Refuses data other than those that the config's run, or checkpoint, was trained on."""
        name, digest = self._flags["problem"], self._flags["data_digest"]
        run_files.check_same_data(config, name, self.data_dir, digest)

    def _check_same(self) -> None:
        """Compares what this process was started for with what the others were, once."""
        if not self._is_checked:
            flags = {k: v for k, v in self._flags.items() if k not in _OWN_FLAGS}
            data = {f"data of {self.problem.name}": self._flags["data_digest"]}
            check_same(self.estimator.connect(), {**self.hparams.values(), **flags, **data})
            self._is_checked = True

    def _changed_hparams(self) -> str:
        """The hparams that are not the saved run's, as the end of a sentence."""
        if self._saved is None or self._saved.hparams is None:
            return ""
        changed = [
            f"{name}={mine!r} (saved: {saved!r})"
            for name, mine, saved in self.hparams.diff(self._saved.hparams)
        ]
        return (
            f"; hparams that differ from the saved run's: {', '.join(changed)}" if changed else ""
        )


def _check_at_least(least: int, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:  # NaN is not.
            raise ValueError(f"{name} is {number}, and must be at least {least}")
