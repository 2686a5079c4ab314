"""`Experiment`: the schedules that train, evaluate and decode a run."""

import functools
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from absl import logging

from t2tp import checkpoint
from t2tp.argument_types import checked
from t2tp.checkpoint import BestMetric, UnusableCheckpointError
from t2tp.checkpoint.restore import check_same_save
from t2tp.checkpoint.variables import CheckpointMismatchError
from t2tp.decoding import DecodeOptions
from t2tp.layout_report import LayoutReport
from t2tp.object_store.mirror import address_of
from t2tp.suggestions import check_known
from t2tp.trainer.evaluations import DecodedSamples, SplitEvaluation
from t2tp.trainer.hooks.hook import EvaluationHook, Hook
from t2tp.trainer.inference.generation_config import default_options
from t2tp.trainer.inference.run_decoder import RunDecoder, check_writes
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.processes import multiprocess
from t2tp.trainer.references import References
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory, find, follow_checkpoints
from t2tp.trainer.run_spec import RunSpec

# Flags that may differ between the processes of a run.
_OWN_FLAGS = ("data_digest", "data_dir", "output_dir", "t2t_usr_dir", "tmp_dir")

# Flags that only the command-line programs set. If Python code resumes a run, these flags keep
# their saved values.
_KEPT_FLAGS = ("hparams_set", "t2t_usr_dir")

# schedule -> modes of its programs
SCHEDULES = {
    "train": (ModeKeys.TRAIN,),
    "evaluate": (ModeKeys.EVAL,),
    "evaluate_on_train_data": (ModeKeys.EVAL,),
    "train_and_evaluate": (ModeKeys.TRAIN, ModeKeys.EVAL),
    "continuous_eval": (ModeKeys.EVAL,),
}


class Experiment:
    """Trains, evaluates and decodes the run that a `RunSpec` describes.

    ```python
    experiment = Experiment(spec)
    metrics = experiment.train_and_evaluate()
    ```

    With several processes, each creates the same experiment and calls the same methods. Only
    process 0 writes the run's files.

    Attributes:
      spec: the run's spec.
      estimator: the run's `Estimator`.
    """

    @checked
    def __init__(
        self,
        spec: RunSpec,
        *,
        decode_options: DecodeOptions | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        """Opens the data without building a program or writing a file.

        Args:
          spec: the run's spec.
          decode_options: options of `predict` and of decoded samples. Default: see
            `generation_config.default_options`.
          hooks: called around each training step, before the step is saved.

        Raises:
          LayoutError: mesh shape or layout cannot be parsed.
          FileNotFoundError: the data are not prepared; the message names the command to run.
          ValueError: the data are damaged, or a number is out of range.
        """
        spec.evaluation.check(spec.problem)
        self.spec = spec
        self._hooks = hooks
        self._decode_options = decode_options or DecodeOptions(**default_options(spec))
        self.estimator = spec.make_estimator()
        self._train_inputs = spec.training_inputs()
        self._references = References(spec, self.estimator)
        self._goal = self._find_goal()
        self._checkpoints = checkpoint_directory(spec.config.output_dir)
        self._is_checked = False
        saved = spec.saved.flags if spec.saved else {}
        self._flags: dict[str, Any] = {
            **{name: saved[name] for name in _KEPT_FLAGS if name in saved},
            **spec.flags,
            **spec.config.changed(),
            "model": spec.model,
            "problem": spec.problem_name,
            "problem_options": spec.problem_options,
            "data_dir": str(spec.data_dir),
            "data_digest": spec.data_digest,
            "train_steps": spec.train_steps,
        }

    def build(self, schedule: str) -> None:
        """Builds the programs of a schedule and restores the latest checkpoint; writes no files.

        The methods that run a schedule, such as `train`, call this method themselves. Call it
        before them to report errors early. For `continuous_eval`, it waits for the first
        checkpoint.

        Raises:
          LayoutError: the layout does not fit the model.
          CheckpointMismatchError: the run's variables differ from the model's.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          ProcessMismatchError: another process was started with different settings.
          OtherRunError: the run or `checkpoint_path` was trained on different data.
        """
        self.spec.check_same_data()
        self._check_same()
        if schedule == "continuous_eval":
            self._await_a_checkpoint()
        for mode in SCHEDULES[schedule]:
            try:
                self._build(mode, schedule)
            except CheckpointMismatchError as error:
                raise CheckpointMismatchError(f"{error}{self._changed_hparams()}") from error

    def _build(self, mode: ModeKeys, schedule: str) -> None:
        """Builds the programs of one mode of a schedule."""
        split, inputs = self.spec.problem.splits[0], self._train_inputs
        if mode != ModeKeys.TRAIN:
            on_train_data = schedule == "evaluate_on_train_data"
            evaluation = self._evaluation_on_train_data if on_train_data else self._evaluation
            split, inputs = evaluation.split, evaluation.inputs
        for features in inputs.kinds:
            self.estimator.build(mode, features)
        self._references.set(split, training=mode == ModeKeys.TRAIN)

    def describe(self) -> str:
        """Describes mesh, devices, model size and directory, one per line."""
        cluster = self.estimator.connect()
        trainable, frozen, state = self.estimator.parameter_counts()
        sizes = f": {trainable:,} parameters" if trainable else ""
        if frozen:
            sizes += f", {frozen:,} frozen parameters"
        if state:
            sizes += f", {state:,} optimizer state values"
        return "\n".join(
            [
                str(self.estimator.layout),
                cluster.describe(),
                f"{self.spec.model} on {self.spec.problem.name}{sizes}",
                f"the run is in {address_of(self.spec.config.output_dir)}",
            ]
        )

    def explain(self) -> LayoutReport:
        """Reports how the training program is laid out; needs no devices and writes no files.

        Raises:
          LayoutError: the layout does not fit the model.
        """
        return self.estimator.explain(ModeKeys.TRAIN, self._train_inputs.features)

    def train(self) -> None:
        """Trains to `train_steps`, resuming from the latest checkpoint.

        Raises:
          TrainingInterrupted: a signal arrived; the step was saved.
        """
        self._train("train", [])

    def train_and_evaluate(self) -> dict[str, float]:
        """Trains like `train`, and evaluates every `local_eval_frequency` steps and at the end.

        Returns:
          The problem's metrics at the end.

        Raises:
          TrainingInterrupted: a signal arrived; the step was saved.
        """
        every, evaluation = self.spec.evaluation.local_eval_frequency, self._evaluation
        hooks = [EvaluationHook(every, evaluation.run, evaluation.plateau)] if every else []
        self._train("train_and_evaluate", hooks, evaluation.plateau)
        metrics = evaluation.run_once()
        evaluation.log_best(self._goal)
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Evaluates the variables in memory on the evaluation split; returns the metrics.

        If no program has been built yet, the latest checkpoint is restored first.
        """
        self.build("evaluate")
        return self._evaluation.run()

    def measure(self, path: str | PathLike[str]) -> tuple[int, dict[str, float]]:
        """Evaluates a checkpoint on the evaluation split; writes no files.

        Args:
          path: path of the checkpoint; see `find_checkpoint.find`.

        Returns:
          The checkpoint's step and the problem's metrics.

        Raises:
          CheckpointMismatchError: the checkpoint's variables differ from the model's.
          FileNotFoundError, UnusableCheckpointError: the checkpoint is missing or damaged.
          OtherRunError: the checkpoint was trained on different data.
        """
        self.build("evaluate")
        self.spec.check_same_data(str(path))
        saved = find(str(path))
        with multiprocess.checking_same_checkpoint():
            check_same_save(saved, self.estimator.connect())
        self.estimator.restore(saved)
        return self.estimator.steps_done, self._evaluation.measure()

    def evaluate_on_train_data(self) -> dict[str, float]:
        """Evaluates like `evaluate`, on the training split: each example once, in order."""
        self.build("evaluate_on_train_data")
        return self._evaluation_on_train_data.run()

    def continuous_eval(self) -> dict[int, dict[str, float]]:
        """Evaluates each new checkpoint of a run that another process trains.

        Ends after the checkpoint of `train_steps`, after `eval_timeout_mins` without a new
        checkpoint, or by early stopping. When restarted, it skips checkpoints with a recorded
        evaluation.

        Returns:
          The metrics by step, for all recorded evaluations.
        """
        self.build("continuous_eval")
        evaluation, cluster = self._evaluation, self.estimator.connect()
        recorded = evaluation.on_record()
        if max(recorded, default=-1) >= self.spec.train_steps:
            return recorded
        minutes = self.spec.evaluation.eval_timeout_mins
        for step in follow_checkpoints(self._checkpoints, cluster, recorded, minutes):
            if not self._restore(step):
                continue
            evaluation.run()
            stop_reason = evaluation.plateau()
            if stop_reason:
                logging.info("stopping after the checkpoint of step %d: %s", step, stop_reason)
            if stop_reason or step >= self.spec.train_steps:
                break
        return evaluation.on_record()

    def predict(self, text: str, length: int | None = None) -> str:
        """Decodes a text with the latest checkpoint and the experiment's `decode_options`.

        Args:
          text: the prompt of a language model, or the inputs of other models.
          length: max tokens to generate. Default: the length of `decode_options`.

        Returns:
          The generated text, without the prompt.

        Raises:
          UsageError: the model is not autoregressive, or the problem is not about text.
          ValueError: the text is too long for the model.
        """
        self.spec.check_same_data()
        self._check_same()
        check_writes(self.spec.model)
        return self._decoder.text(text, length)

    def _find_goal(self) -> BestMetric:
        """Returns the metric that defines the best evaluation.

        It is `keep_best_metric` if set, else the metric of early stopping if used, else the loss.
        """
        if self.spec.config.keep_best_metric:
            problem, goal = self.spec.problem, BestMetric.parse(self.spec.config.keep_best_metric)
            sentence = f"the best checkpoint by the unknown metric {goal.metric!r}"
            check_known(goal.metric, problem.metric_names, f"metrics of {problem.name}", sentence)
            return goal
        stopping = self.spec.evaluation.early_stopping
        if stopping is not None:
            return BestMetric(stopping.metric, stopping.minimize)
        return BestMetric("loss", True)

    @property
    def _decoder(self) -> RunDecoder:
        return RunDecoder(self.spec, self.estimator, self._decode_options)

    @functools.cached_property
    def _evaluation(self) -> SplitEvaluation:
        """The evaluation of the split that the spec names."""
        return self._evaluation_of(self.spec.evaluation.eval_split)

    @functools.cached_property
    def _evaluation_on_train_data(self) -> SplitEvaluation:
        return self._evaluation_of(self.spec.problem.splits[0])

    def _evaluation_of(self, split: str) -> SplitEvaluation:
        shown = self.spec.evaluation.eval_samples
        samples = DecodedSamples(self._decoder, self.spec, split, shown) if shown else None
        return SplitEvaluation(self.estimator, self.spec, split, samples)

    def _await_a_checkpoint(self) -> None:
        """Waits for the first checkpoint of the run."""
        cluster, minutes = self.estimator.connect(), self.spec.evaluation.eval_timeout_mins
        if next(follow_checkpoints(self._checkpoints, cluster, (), minutes), None) is None:
            raise FileNotFoundError(
                f"{self.spec.config.output_dir} has no finished checkpoint, and none was saved"
                f" within {minutes:g} minutes"
            )

    def _restore(self, step: int) -> bool:
        """Restores a checkpoint of the run; returns False, with a warning, if it is unusable."""
        problem, save_id = "", ""
        try:
            saved = checkpoint.Checkpoint(checkpoint.step_directory(self._checkpoints, step))
            save_id = saved.save_id
            self.estimator.restore(saved)
        except UnusableCheckpointError as error:
            problem = str(error)
        # If one process cannot restore the checkpoint, all must skip it.
        outcomes = self.estimator.connect().process_allgather("restored", [problem, save_id])
        problems, save_ids = zip(*outcomes, strict=True)
        for each in filter(None, problems):
            logging.warning("not evaluated: %s", each)
            return False
        if len(set(save_ids)) > 1:
            raise multiprocess.ProcessMismatchError(
                f"the processes have different checkpoints of step {step} in"
                f" {self.spec.config.output_dir}: all processes must share this directory"
            )
        return True

    def _train(
        self, schedule: str, hooks: Sequence[Hook], plateau: Callable[[], str] = str
    ) -> None:
        output_dir, cluster = self.spec.config.output_dir, self.estimator.connect()
        # Evaluation can use checkpoints without `run.yaml`, but training cannot continue from them.
        run_files.check_known(output_dir, run_files.read(output_dir))
        self.build(schedule)
        stop_reason = plateau()
        if stop_reason:
            logging.info("stopped early at step %d: %s", self.estimator.steps_done, stop_reason)
            return
        with self.estimator.lock:
            if not self.estimator.steps_done:
                run_files.check_not_trained(output_dir, self.spec.config.first_save)
            if cluster.is_main_process:
                run_files.write(output_dir, self.spec.hparams, self._flags | self._how(schedule))
                self._references.write()
            resumed_step = self.estimator.steps_done
            if resumed_step:
                logging.info("resuming from the checkpoint of step %d", resumed_step)
            if ModeKeys.EVAL in SCHEDULES[schedule]:
                self._evaluation.summaries.resume(resumed_step)
            all_hooks = [*self._hooks, *hooks]
            self.estimator.train(self._train_inputs, self.spec.train_steps, all_hooks)

    def _how(self, schedule: str) -> dict[str, Any]:
        """Returns the flags that make t2tp_trainer run this schedule with these settings."""
        flags: dict[str, Any] = {"schedule": schedule, "random_seed": self.spec.config.random_seed}
        if ModeKeys.EVAL in SCHEDULES[schedule]:
            flags |= self.spec.evaluation.flags()
        return flags

    def _check_same(self) -> None:
        """Compares hparams, flags and data between the processes, once."""
        if not self._is_checked:
            flags = self._flags | self._how("train_and_evaluate")
            flags = {k: v for k, v in flags.items() if k not in _OWN_FLAGS}
            data = {f"data of {self.spec.problem.name}": self._flags["data_digest"]}
            settings = self.spec.hparams.values() | flags | data
            multiprocess.check_same(self.estimator.connect(), settings)
            self._is_checked = True

    def _changed_hparams(self) -> str:
        """Lists the hparams that differ from the saved run, as the end of a sentence."""
        if self.spec.saved is None:
            return ""
        changed = [
            f"{name}={mine!r} (saved: {saved!r})"
            for name, mine, saved in self.spec.hparams.diff(self.spec.saved.hparams)
        ]
        return (
            f"; hparams that differ from the saved run's: {', '.join(changed)}" if changed else ""
        )
