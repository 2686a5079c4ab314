"""Trains, evaluates and predicts with a model function, on a mesh."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import checkpoint, mtf
from t2tp.explanation import Explanation, explain
from t2tp.hparam import HParams
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import Layout
from t2tp.mesh.on_paper import ProgramOnPaper
from t2tp.mesh.program import Feature, Mesh, Placed, Program, StepFn
from t2tp.mesh.variables import Variables
from t2tp.trainer import restoring
from t2tp.trainer.bad_step import Rerun, TrainingDivergedError, begin_anew, counting_step
from t2tp.trainer.config_checks import check_mesh, check_precision, check_skips
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.guards import NonfiniteStepError
from t2tp.trainer.heartbeat import Heartbeat
from t2tp.trainer.hooks import Hook, Training
from t2tp.trainer.inputs import (
    Batch,
    InputFn,
    Inputs,
    number_of_batches,
    shapes_of_batch,
    shapes_of_features,
)
from t2tp.trainer.interrupt import InterruptHandler, TrainingInterrupted
from t2tp.trainer.json_log import JsonLog
from t2tp.trainer.model_fn import EstimatorSpec, ModeKeys, ModelFn
from t2tp.trainer.prefetch import Prefetcher
from t2tp.trainer.progress import Progress
from t2tp.trainer.run_checkpoints import RunCheckpoints
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_lock import RunLock
from t2tp.trainer.run_saver import RunSaver
from t2tp.trainer.saved_model import Signatures, of_features, write_saved_model
from t2tp.trainer.steps import add_up, train_on
from t2tp.trainer.together import connect_as
from t2tp.trainer.trackers import Tracker, open_tracker
from t2tp.trainer.watching import watching_hooks
from t2tp.whole_file import remove_unfinished


class Estimator:
    """A model function, its variables on a mesh, and the checkpoints of a run.

    Training goes on from the newest checkpoint in `config.output_dir`; evaluation and prediction
    use the values in memory or, where there are none yet, that checkpoint's.

    Of several processes each makes an estimator and calls the same methods in the same order; they
    work together, and process 0 alone reports and writes summaries.

    Attributes:
      config: the `RunConfig`.
      layout: the `Layout`.
      steps_done: training steps behind the variables' present values.
      log: `config.log_json`; in all processes but the first nothing is written.
    """

    def __init__(self, model_fn: ModelFn, config: RunConfig, hparams: Any = None) -> None:
        """Builds nothing yet.

        Args:
          model_fn: `(mesh, features, mode, hparams) -> EstimatorSpec`, building an mtf graph. If it
            has a parameter `config` too, it gets the config.
          config: the mesh, the folder, how often to save.
          hparams: handed to `model_fn`.

        Raises:
          LayoutError: mesh shape or layout cannot be read.
          ValueError: a precision that the model function is not told or told otherwise, hparams
            that say another mesh, or a setting of checkpoints that cannot be read.
        """
        self.config = config
        self.layout = Layout(config.mesh_shape, config.layout)
        self.steps_done = 0
        self._model_fn = model_fn
        self._takes_config = "config" in inspect.signature(model_fn).parameters
        self._hparams = hparams
        check_precision(config, hparams, self._takes_config)
        check_skips(config, hparams)
        check_mesh(config, hparams)
        self._cluster: Cluster | None = None
        self._variables: Variables | None = None
        self._programs: dict[tuple, Program] = {}
        self._has_trained = False
        self._num_loaded = 0  # Variables that have got the values they begin with.
        self._checkpoints = RunCheckpoints(config)
        self._lock: RunLock | None = None
        self.log = JsonLog()
        self._tracker: Tracker | None = None
        self._heartbeat: Heartbeat | None = None  # Only while training.

    def connect(self) -> Cluster:
        """Finds the devices of the mesh, and the other processes, if that was not done.

        On GPUs this turns TensorFlow's op determinism on, without which sums over segments (the
        gradients of embeddings) differ from run to run. On CPUs our operations do not need it.

        Raises:
          ValueError: there are not as many as the mesh has processors, or the processes do not fit
            together.
          MissingProcessError: other processes did not come.
        """
        if self._cluster is None:
            self._cluster = connect_as(self.config)
            if self._cluster.peers is not None:
                self._cluster.peers.advice = self._checkpoints.how_to_go_on
            if any("GPU" in device for device in self._cluster.devices):
                tf.config.experimental.enable_op_determinism()
            if self._cluster.leads:
                self.log = JsonLog(self.config.log_json)
        return self._cluster

    @property
    def latest_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The newest finished checkpoint of the run."""
        return self._checkpoints.latest

    def build(self, mode: ModeKeys, features: Mapping[str, Feature]) -> Program:
        """Builds the program of a mode and gives its variables their values. Writes nothing.

        A second call with features of the same shapes returns the same program.

        Raises:
          LayoutError: the layout cannot work for the model.
          CheckpointMismatchError: the newest checkpoint has other variables.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          UnusableCheckpointError: the checkpoint is damaged, and there is none before it.
        """
        key = (mode, *((name, f.shape.to_string, f.dtype) for name, f in features.items()))
        if key not in self._programs:
            program = self._program(self._step_fn(mode), features)
            self._variables = program.variables
            trains = mode == ModeKeys.TRAIN
            if (trains and not self._has_trained) or len(program.variables) > self._num_loaded:
                self.steps_done = self._checkpoints.load(program.variables, to_train=trains)
                self._num_loaded = len(program.variables)
            self._has_trained |= trains
            self._programs[key] = program
        return self._programs[key]

    def explain(self, mode: ModeKeys, features: Mapping[str, Feature]) -> Explanation:
        """Says how the program of a mode lies on its mesh. Takes no devices, and no checkpoint.

        Raises:
          LayoutError: the layout cannot work for the model.
        """
        program = ProgramOnPaper(
            self._step_fn(mode),
            features,
            mesh_shape=self.config.mesh_shape,
            layout=self.config.layout,
        )
        return explain(program)

    def lock(self) -> RunLock:
        """What keeps other processes from training in `output_dir`; `train` takes it, too."""
        if self._lock is None:
            self._lock = RunLock(self.config.output_dir, self.connect())
        return self._lock

    def train(self, inputs: Inputs | InputFn, max_steps: int, hooks: Sequence[Hook] = ()) -> None:
        """Trains until `max_steps` steps have been done since the beginning of the run.

        Args:
          inputs: step k is fed `inputs.stream[k]`; or a function that gives them, which may run
            TensorFlow operations: it is called when the devices of the mesh have been made.
          max_steps: of the whole run; if as many are done, nothing happens.
          hooks: are called around the steps, before the step is saved.

        Raises:
          TrainingInterrupted: by SIGINT or SIGTERM, after the step was saved.
          MissingProcessError: another process failed or is gone.
          RunLockedError: another process trains in `output_dir`, or has done so meanwhile.
          SavingError: a checkpoint could not be written.
          TrainingDivergedError: a step's loss or gradients are not finite, and
            `config.on_nonfinite` is `stop`. The newest checkpoint is of the step before.
        """
        inputs = self._opened(inputs)
        place = self._placer(ModeKeys.TRAIN, inputs)
        program = self.build(ModeKeys.TRAIN, inputs.features)
        training = Training(self.steps_done, max_steps)
        if training.steps_done >= max_steps:
            logging.info("%d of %d steps are done already", training.steps_done, max_steps)
            return
        program.trace()
        with self.lock():
            self._remove_unfinished()
            self._checkpoints.check_untouched(self.connect(), self.steps_done)
            self._checkpoints.check_writable()
            self.log.resume(os.path.abspath(self.config.output_dir), self.steps_done)
            with self._checkpoints.saver_of(program.variables, self._note_saved) as saver:
                try:
                    came = self._train_with(saver, program, inputs, place, training, hooks)
                except NonfiniteStepError as bad:
                    raise self._explained(bad, saver, inputs, place) from None
        if came:
            self.log.write("interrupted", self.steps_done, {"signal": came})
            raise TrainingInterrupted(
                f"interrupted after step {self.steps_done}, which is saved", came
            )
        self.log.write("ended", self.steps_done, {"reason": training.stop_reason or "train_steps"})

    def evaluate(self, inputs: Inputs | InputFn, steps: int = -1) -> dict[str, float]:
        """Adds up the model's metrics, and the host's counts, over batches.

        Of several processes each counts in some of the batches.

        Args:
          inputs: as in `train`, with a stream that has an end.
          steps: how many batches; 0 or -1: all.

        Returns:
          the sums, by name, the same in all processes.

        Raises:
          ValueError: the stream does not know its length, and no number of steps is given.
        """
        inputs = self._opened(inputs)
        place = self._placer(ModeKeys.EVAL, inputs)
        count = number_of_batches(inputs.stream, steps)
        cluster = self.connect()

        def prepare(step: int) -> tuple:
            batch = inputs.stream[step]
            mine = step % cluster.num_processes == cluster.process_id
            return place(batch), inputs.counts(batch) if mine else {}

        def counted() -> None:
            if self._heartbeat is not None:
                self._heartbeat.beat(self.steps_done, "evaluating")

        with Prefetcher(prepare, range(count)) as prepared:
            return add_up(prepared, self.steps_done, cluster, counted)

    def predict(self, features: Mapping[str, Feature], batch: Batch) -> Mapping[str, np.ndarray]:
        """The model's predictions for a batch.

        Args:
          features: what is in the batch; the first call with these shapes builds a program.
          batch: global arrays by name.

        Returns:
          `EstimatorSpec.predictions`, whole arrays.
        """
        return self.build(ModeKeys.PREDICT, features)(batch)

    def export_saved_model(
        self,
        path: str | PathLike[str],
        features: Mapping[str, Feature],
        signatures: Signatures | None = None,
    ) -> Path:
        """Writes what the model function predicts as a SavedModel, whole or not at all.

        Args:
          path: of the new folder.
          features: what the model function predicts from.
          signatures: makes what the SavedModel can be asked; by default `serving_default`, from the
            features, of exactly these shapes, to the predictions.

        Returns:
          the folder.

        Raises:
          UsageError: the folder exists, or the config has a mesh: an exported model runs on one
            device. The checkpoint may be of any mesh.
          FileNotFoundError, CheckpointMismatchError, UnusableCheckpointError: see `build`.
          OSError: it cannot be written.
        """
        if self.layout.size > 1:
            raise UsageError(
                f"an exported model runs on one device, and this estimator has the mesh"
                f" {self.config.mesh_shape}: make one without, its checkpoints may be of any mesh"
            )
        program = self.build(ModeKeys.PREDICT, features)
        return write_saved_model(program, path, signatures or of_features(features))

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Gives the variables of all programs built so far the values of a checkpoint.

        Raises:
          CheckpointMismatchError: the checkpoint has other variables.
          UnusableCheckpointError: the checkpoint is damaged, or gone.
          ValueError: nothing has been built.
        """
        if self._variables is None:
            raise ValueError("there are no variables to restore: build a program first")
        restoring.restore(saved, self._variables, whole=self._has_trained)
        self.steps_done = saved.step

    def parameter_counts(self) -> tuple[int, int]:
        """How many numbers the model learns, and how many the optimizer keeps besides."""
        sizes: Counter[bool] = Counter()
        for variable in self._variables or ():
            sizes[variable.spec.trainable] += variable.spec.shape.size
        return sizes[True], sizes[False]

    def record_metrics(self, metrics: Mapping[str, float]) -> None:
        """Notes what an evaluation of the present values has found, with their checkpoint.

        The checkpoint is that of `steps_done`, saved before or next. One that was named in
        `config.checkpoint_path` is left as it is.
        """
        self._checkpoints.record_metrics(self.steps_done, metrics, self.connect())

    def track(self, step: int, scalars: Mapping[str, float]) -> None:
        """Sends scalars to the tracker that the config names; only process 0 does."""
        if not self.config.tracker or not self.connect().leads:
            return
        if self._tracker is None:
            values = self._hparams.values() if isinstance(self._hparams, HParams) else {}
            self._tracker = open_tracker(self.config.tracker, self.config.output_dir, values)
        self._tracker(step, scalars)

    def _program(self, step_fn: StepFn, features: Mapping[str, Feature]) -> Program:
        """A program on the run's mesh, with the run's variables."""
        return Program(
            step_fn,
            features,
            mesh_shape=self.config.mesh_shape,
            layout=self.config.layout,
            cluster=self.connect(),
            variables=self._variables,
            seed=self.config.random_seed,
            xla=self.config.xla,
        )

    def _step_fn(self, mode: ModeKeys) -> StepFn:
        """What a program of a mode is built from."""
        return lambda mesh, features: self._spec(mode, mesh, features).outputs()

    def _spec(self, mode: ModeKeys, mesh: Mesh, features: dict[str, mtf.Tensor]) -> EstimatorSpec:
        """What the model function builds."""
        more = {"config": self.config} if self._takes_config else {}
        return self._model_fn(mesh, features, mode, self._hparams, **more)

    def _opened(self, inputs: Inputs | InputFn) -> Inputs:
        """The inputs, or what the function gives; TensorFlow may start up in it."""
        self.connect()
        return inputs() if callable(inputs) else inputs

    def _placer(self, mode: ModeKeys, inputs: Inputs) -> Callable[[Batch], tuple[Program, Placed]]:
        """What finds the program for a batch, and puts the batch on the devices."""
        programs = {shapes_of_features(kind): self.build(mode, kind) for kind in inputs.kinds}
        usual = self.build(mode, inputs.features)

        def place(batch: Batch) -> tuple[Program, Placed]:
            program = programs.get(shapes_of_batch(batch), usual)  # which refuses what does not fit
            return program, program.place(batch)

        return place

    def _train_with(
        self,
        saver: RunSaver,
        program: Program,
        inputs: Inputs,
        place: Callable[[Batch], tuple[Program, Placed]],
        training: Training,
        hooks: Sequence[Hook],
    ) -> int:
        """Trains with all that watches and saves; returns the signal that ended it, or 0."""
        first_step, config = training.steps_done, self.config
        with contextlib.ExitStack() as stack:
            checkpoints = self._checkpoints.hook(saver, first_step, training.max_steps)
            progress = None
            if program.cluster.leads:
                progress = Progress(first_step, training.max_steps, checkpoints.next)
                stack.enter_context(progress)
                self._heartbeat = Heartbeat(config.output_dir)
                stack.callback(setattr, self, "_heartbeat", None)
            watching = watching_hooks(
                config,
                program,
                inputs,
                self._hparams,
                self._loss_fn,
                first_step=first_step,
                log=self.log,
                heartbeat=self._heartbeat,
                progress=progress,
                track=self.track,
            )
            began = {"max_steps": training.max_steps, "run": os.path.abspath(config.output_dir)}
            self.log.write("began", first_step, began)
            interrupt = stack.enter_context(
                InterruptHandler(program.cluster, first_step, config.grace_seconds)
            )
            steps = range(first_step, training.max_steps)
            placed = stack.enter_context(Prefetcher(lambda step: place(inputs.stream[step]), steps))
            # Saving comes last: what others do at a step is done when it is saved.
            all_hooks = [*watching, *hooks, checkpoints]
            train_on(placed, training, all_hooks, interrupt, self._count_steps)
            return interrupt.result()

    def _explained(
        self,
        bad: NonfiniteStepError,
        saver: RunSaver,
        inputs: Inputs,
        place: Callable[[Batch], tuple[Program, Placed]],
    ) -> TrainingDivergedError:
        """Goes back to before a bad step, and finds what was wrong with it."""
        self.log.write("diverged", bad.step, {"what": str(bad)})

        def go_back() -> int:
            variables = saver.variables
            begin_anew(variables, Variables(self.layout, self.connect(), self.config.random_seed))
            self.steps_done = self._checkpoints.load(variables, to_train=True)
            return self.steps_done

        def look(step: int) -> Mapping[str, np.ndarray]:
            batch = inputs.stream[step]
            shapes = shapes_of_batch(batch)
            features = next(kind for kind in inputs.kinds if shapes_of_features(kind) == shapes)
            return self._program(counting_step(self._loss_fn), features)(batch, step=step)

        return Rerun(go_back, lambda step: place(inputs.stream[step]), look, saver).explain(bad)

    def _loss_fn(self, mesh: Mesh, features: dict[str, mtf.Tensor]) -> mtf.Tensor:
        """The loss as training computes it."""
        loss = self._spec(ModeKeys.LOSS, mesh, features).loss
        if loss is None:
            raise ValueError("The model function returned no loss in the mode LOSS.")
        return loss

    def _remove_unfinished(self) -> None:
        """Deletes what a killed trainer has left of a file, now that no other one trains."""
        if self.connect().leads:
            with as_usage_error(OSError):
                remove_unfinished(self.config.output_dir)

    def _count_steps(self, steps_done: int) -> None:
        self.steps_done = steps_done

    def _note_saved(self, step: int) -> None:
        self.log.write("checkpoint", step)
