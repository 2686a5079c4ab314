"""`Estimator`: training, evaluation and prediction with a model function on a mesh."""

import contextlib
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import checkpoint, mtf
from t2tp.argument_types import checked
from t2tp.atomic_file import remove_unfinished
from t2tp.building.mesh import Mesh
from t2tp.checkpoint.variables import restore
from t2tp.decoding import DecodeOptions
from t2tp.hparam import HParams
from t2tp.layout_report import LayoutReport, explain
from t2tp.mesh.layout import Layout
from t2tp.models.transformer_lm import TEACHER
from t2tp.optim.nonfinite import first_nonfinite, largest_magnitudes
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.processes.cluster import Cluster
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature, PlacedFeatures, Program, StepFn
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hooks.default_hooks import default_hooks
from t2tp.trainer.hooks.heartbeat import Heartbeat
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.hooks.nonfinite import NonfiniteStepError, TrainingDivergedError, replayed_cause
from t2tp.trainer.hooks.progress import TrainingProgress
from t2tp.trainer.hooks.replicas import ReplicaMismatchError, name_wrong_device
from t2tp.trainer.inference.saved_model import Signatures, of_features, write_saved_model
from t2tp.trainer.inputs.inputs import Batch, BatchStream, InputFn, Inputs, features_of_batch
from t2tp.trainer.loops import in_loops, prefetched, sum_metrics, train_loop
from t2tp.trainer.model_fn import EstimatorSpec, ModeKeys, ModelFn
from t2tp.trainer.other_run import OtherRun
from t2tp.trainer.processes.interrupt import InterruptHandler, TrainingInterrupted
from t2tp.trainer.processes.multiprocess import connect_as
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir.run_checkpoints import RunCheckpoints
from t2tp.trainer.run_dir.run_lock import RunLock
from t2tp.trainer.run_dir.run_saver import LockHook, RunSaver

# The launch of a step on a GPU costs the host up to 10 ms. Eight steps in a launch make this cost
# small, and few batches wait in the GPU's memory. Other numbers have not been measured on a GPU.
_LOOP_ON_GPU = 8

# Places a batch on the devices; returns it with its program.
_Place = Callable[[Batch], tuple[Program, PlacedFeatures]]


class Estimator:
    """A model function, its variables on a mesh, and the checkpoints of a run.

    Training resumes from the latest checkpoint in `config.output_dir`. Evaluation and prediction
    use the variables as they are in memory. If no program has been built yet, they first restore
    the latest checkpoint, or the checkpoint given as `config.checkpoint_path`.

    With several processes, each creates an estimator and calls the same methods in the same order.
    Only process 0 reports and writes summaries.

    Attributes:
      steps_done: the number of training steps that led to the variables' current values.
      log: the JSON log of `config.log_json`; only process 0 writes it.
    """

    @checked
    def __init__(
        self,
        model_fn: ModelFn,
        config: RunConfig,
        hparams: HParams | Mapping[str, Any] | None = None,
        layout: Layout | None = None,
        vocabulary: Callable[[], Vocabulary | None] = lambda: None,
        teacher: OtherRun | None = None,
    ) -> None:
        """Checks the settings without building a program.

        Args:
          model_fn: `(mesh, features, mode, hparams) -> EstimatorSpec`, which builds an mtf graph.
            The function may also have parameters `config` and `decode_options`, which get the
            config and the options of `predict`.
          config: settings of the run, such as its directory and how often to save.
          hparams: `HParams` or a mapping, passed to `model_fn`. Its `mesh_shape` and `layout`
            define the mesh; without them the mesh is one device.
          layout: the layout of the hparams, if the caller has parsed it.
          vocabulary: returns the data's vocabulary, for warm starts from runs with another
            vocabulary.
          teacher: the run whose weights the variables below the scope `teacher` have.

        Raises:
          LayoutError: mesh shape or layout cannot be parsed.
          ValueError: a checkpoint setting cannot be parsed.
        """
        self.config = config
        self.layout = layout or Layout.from_hparams(hparams)
        self.steps_done = 0
        self._model_fn = model_fn
        self._model_fn_takes = frozenset(inspect.signature(model_fn).parameters)
        self._hparams = hparams
        self._cluster: Cluster | None = None
        self._variables: Variables | None = None
        self._teacher = teacher
        self._taught_by: Variables | None = None  # The teacher's variables.
        self._programs: dict[tuple, Program] = {}
        self._has_trained = False
        self._num_loaded = 0  # Number of variables with their initial or restored values.
        self._checkpoints = RunCheckpoints(config, self.layout, vocabulary)
        self.log = JsonLog()
        self._heartbeat: Heartbeat | None = None  # Only while training.

    def connect(self) -> Cluster:
        """Finds the devices of the mesh and the other processes; later calls only return them.

        With `config.deterministic` (by default: on several devices), enables TensorFlow's op
        determinism on GPUs. Without it, segment sums (the gradients of embeddings) and attention's
        gradients differ from run to run, and XLA's autotuning chooses kernels by their time.

        Raises:
          ValueError: the number of devices is not the size of the mesh, or the settings of the
            processes contradict each other.
          MissingProcessError: other processes did not join.
        """
        if self._cluster is None:
            self._cluster = connect_as(self.config, self.layout)
            if self._cluster.coordination is not None:
                self._cluster.coordination.advice = self._checkpoints.advice_on_resuming
            deterministic = self.config.deterministic
            if deterministic is None:
                deterministic = self.layout.size > 1  # Copies of a variable must stay equal.
            if deterministic and not self._cluster.on_cpu:
                tf.config.experimental.enable_op_determinism()
            if self._cluster.is_main_process:
                self.log = JsonLog(self.config.log_json)
        return self._cluster

    def build(
        self,
        mode: ModeKeys,
        features: Mapping[str, Feature],
        decode_options: DecodeOptions | None = None,
    ) -> Program:
        """Builds the program of a mode and initializes or restores its variables; writes no files.

        Programs are cached by mode, feature shapes and options. `decode_options` are passed to
        model functions that have this parameter.

        Raises:
          LayoutError: the layout does not fit the model.
          CheckpointMismatchError: the latest checkpoint has other variables.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          UnusableCheckpointError: the checkpoint is damaged and there is no earlier one.
        """
        shapes = [(name, f.shape.to_string, f.dtype) for name, f in features.items()]
        key = (mode, decode_options, *shapes)
        if key not in self._programs:
            trains = mode == ModeKeys.TRAIN
            if self._teacher is not None and self._taught_by is None:
                seed = self.config.random_seed
                self._variables, self._taught_by = (
                    Variables(self.layout, self.connect(), seed) for _ in range(2)
                )
                self._variables.lend(TEACHER, self._taught_by)
            step_fn = self._step_fn(mode, decode_options, to_train=trains)
            program = self.program(step_fn, features, exact=True)
            if self._teacher is not None and self._taught_by is not None and trains:
                self._teacher.load(self._taught_by, TEACHER)
            self._variables = program.variables
            # The first training program adds the optimizer's variables, and later programs may add
            # more variables. New variables require another restore of the checkpoint.
            if (trains and not self._has_trained) or len(program.variables) > self._num_loaded:
                self.steps_done = self._checkpoints.load(program.variables, to_train=trains)
                self._num_loaded = len(program.variables)
            self._has_trained |= trains
            self._programs[key] = program
        return self._programs[key]

    def explain(self, mode: ModeKeys, features: Mapping[str, Feature]) -> LayoutReport:
        """Reports how the program of a mode is laid out; needs neither devices nor a checkpoint.

        Raises:
          LayoutError: the layout does not fit the model.
        """
        return explain(AbstractProgram(self._step_fn(mode), features, layout=self.layout))

    @functools.cached_property
    def lock(self) -> RunLock:
        """The lock that keeps other trainings from writing into `output_dir`.

        A caller may acquire the lock before `train`, which acquires it again: the lock is
        reentrant.
        """
        return RunLock(self.config.output_dir, self.connect())

    def train(self, inputs: Inputs | InputFn, max_steps: int, hooks: Sequence[Hook] = ()) -> None:
        """Trains to step `max_steps` of the run.

        Args:
          inputs: step k reads `inputs.stream[k]`. A stream with `batch_sizes` continues at the
            first row that the run has not read. A function that returns inputs may run TensorFlow
            operations, because it is called after the devices of the mesh are set up.
          max_steps: total steps of the run. If the run has done these steps already, the method
            builds the programs, restores the checkpoint, and returns without training.
          hooks: called around each step, before the step is saved.

        Raises:
          TrainingInterrupted: a signal arrived; the step was saved.
          MissingProcessError: another process failed or was lost.
          RunLockedError: another process trains in `output_dir`, or has trained since the restore.
          SavingError: a checkpoint could not be written.
          TrainingDivergedError: a step's loss or gradients are not finite, and the hparam
            `on_nonfinite` is `stop`. The last finite step is saved.
          ReplicaMismatchError: copies of a variable differ between devices; see
            `config.check_replicas_every`.
        """
        inputs = self._open(inputs)
        place = self._placer(ModeKeys.TRAIN, inputs)
        program = self.build(ModeKeys.TRAIN, inputs.features)
        inputs = inputs.resumed(self._checkpoints.batch_sizes, self.steps_done)
        training = Training(self.steps_done, max_steps)
        if training.steps_done >= max_steps:
            logging.info("%d of %d steps are done already", training.steps_done, max_steps)
            return
        if not program.segment_features:  # Otherwise the batch selects the program.
            program.trace(self._loop_size(program))
        with self.lock:
            if self.connect().is_main_process:
                with as_usage_error(OSError):
                    remove_unfinished(self.config.output_dir)  # Files of killed trainers.
            self._checkpoints.check_untouched(self.connect(), self.steps_done)
            self._checkpoints.check_writable()
            if self.connect().is_main_process:
                self._checkpoints.inherit_files()
            self.log.resume(os.path.abspath(self.config.output_dir), self.steps_done)
            with (
                self._checkpoints.saver_of(
                    program.variables,
                    inputs.batch_sizes,
                    lambda step: self.log.write("checkpoint", step),
                ) as saver,
                self._explained(saver, inputs, place),
            ):
                signal_number = self._train_with(saver, program, inputs, place, training, hooks)
        if signal_number:
            self.log.write("interrupted", self.steps_done, {"signal": signal_number})
            raise TrainingInterrupted(
                f"interrupted after step {self.steps_done}, which is saved", signal_number
            )
        self.log.write("ended", self.steps_done, {"reason": training.stop_reason or "train_steps"})

    def evaluate(self, inputs: Inputs | InputFn, steps: int = -1) -> dict[str, float]:
        """Sums the model's metrics and `inputs.counts` over the batches.

        `inputs.counts` runs in Python. For each batch, only one process calls it.

        Args:
          inputs: see `train`; the stream is finite.
          steps: number of batches; 0 or -1: all.

        Returns:
          The sums by name, the same in all processes.

        Raises:
          ValueError: the stream has no length and no number of steps is given.
        """
        inputs = self._open(inputs)
        place = self._placer(ModeKeys.EVAL, inputs)
        count = inputs.number_of_batches(steps)
        cluster = self.connect()

        def prepare(step: int) -> tuple:
            batch = inputs.stream[step]
            is_counted_here = step % cluster.num_processes == cluster.process_id
            return place(batch), inputs.counts(batch) if is_counted_here else {}

        def report_progress() -> None:
            if self._heartbeat is not None:
                self._heartbeat.beat(self.steps_done, "evaluating")

        with prefetched(prepare, range(count)) as batches:
            return sum_metrics(batches, self.steps_done, cluster, report_progress)

    def predict(
        self,
        features: Mapping[str, Feature],
        batch: Batch,
        decode_options: DecodeOptions | None = None,
    ) -> Mapping[str, np.ndarray]:
        """Returns `EstimatorSpec.predictions` for a batch, as global arrays.

        The first call with new shapes of features builds a program; see `build`.
        """
        return self.build(ModeKeys.PREDICT, features, decode_options)(batch)

    def export_saved_model(
        self,
        path: str | PathLike[str],
        features: Mapping[str, Feature],
        signatures: Signatures | None = None,
        decode_options: DecodeOptions | None = None,
    ) -> Path:
        """Writes the predicting program as a SavedModel, atomically, and returns the directory.

        Args:
          path: the new directory.
          features: inputs of the model function.
          signatures: builds the SavedModel's signatures. Default: a single signature,
            `serving_default`, which maps features of exactly these shapes to predictions.
          decode_options: see `build`.

        Raises:
          UsageError: the directory exists, or the hparams have a mesh of several devices. (The
            checkpoint may be from any mesh.)
          FileNotFoundError, CheckpointMismatchError, UnusableCheckpointError: see `build`.
          OSError: the directory cannot be written.
        """
        if self.layout.size > 1:
            raise UsageError(
                f"an exported model runs on one device, and this estimator has the mesh"
                f" {self.layout.mesh_text}: create an estimator without a mesh"
            )
        program = self.build(ModeKeys.PREDICT, features, decode_options)
        return write_saved_model(program, path, signatures or of_features(features))

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Restores from a checkpoint the variables of all programs that have been built.

        Raises:
          CheckpointMismatchError: the checkpoint has other variables.
          UnusableCheckpointError: the checkpoint is damaged or deleted.
          ValueError: no program has been built.
        """
        if self._variables is None:
            raise ValueError("there are no variables to restore: build a program first")
        restore(saved, self._variables, strict=self._has_trained)
        self.steps_done = saved.step

    def rewind(self, inputs: Inputs, steps_done: int) -> tuple[int, BatchStream]:
        """Rewinds the variables to step `steps_done` of the run; writes no files.

        Restores the latest checkpoint up to that step, or the initial values, and replays the
        later steps on the training's `inputs`.

        Returns:
          (the step of the restored values, the run's batches).

        Raises:
          CheckpointMismatchError, UnusableCheckpointError: see `build`.
        """
        self.build(ModeKeys.TRAIN, inputs.features)
        inputs = inputs.resumed(self._checkpoints.batch_sizes, self.steps_done)
        return self._replay_to(steps_done, inputs), inputs.stream

    def _replay_to(self, steps_done: int, inputs: Inputs) -> int:
        """Does the work of `rewind`; returns the step of the restored values."""
        program = self.build(ModeKeys.TRAIN, inputs.features)
        size = self._loop_size(program)
        restored_step = self._checkpoints.go_back(program.variables, steps_done)
        self.steps_done = restored_step
        if restored_step < steps_done:
            count = steps_done - restored_step
            logging.info("replaying %d steps from step %d (Ctrl-C ends)", count, restored_step)

        def place(step: int) -> tuple[Program, PlacedFeatures]:
            # The run may have had another batch size at this step.
            batch = inputs.stream[step]
            program = self.build(ModeKeys.TRAIN, features_of_batch(batch, inputs.features))
            return program, program.place(batch)

        placed = map(place, range(restored_step, steps_done))
        for program, batches in in_loops(placed, restored_step, lambda step: step % size == 0):
            program.loop(batches, self.steps_done, size)
            self.steps_done += len(batches)
        return restored_step

    def _loop_size(self, program: Program) -> int:
        """Returns the largest number of steps that a training launches at once."""
        on_gpu = not program.cluster.on_cpu and program.compiles_step
        return self.config.iterations_per_loop or (_LOOP_ON_GPU if on_gpu else 1)

    def magnitude_program(self, features: Mapping[str, Feature]) -> Program:
        """Builds a program that measures a step's tensors; see `largest_magnitudes`."""
        return self.program(
            lambda mesh, parts: largest_magnitudes(self._loss_fn(mesh, parts), mesh), features
        )

    def parameter_counts(self) -> tuple[int, int, int]:
        """Returns the numbers of trainable parameters, frozen parameters and all other values."""
        sizes: Counter[str] = Counter()
        for variable in self._variables or ():
            spec = variable.spec
            kind = "trainable" if spec.trainable else "frozen" if spec.frozen else "kept"
            sizes[kind] += spec.shape.size
        return sizes["trainable"], sizes["frozen"], sizes["kept"]

    def record_metrics(self, metrics: Mapping[str, float]) -> None:
        """Records the metrics of the current variables in the checkpoint of `steps_done`.

        If this checkpoint is not saved yet, the metrics are written when it is saved. A checkpoint
        given as `config.checkpoint_path` is not changed.
        """
        self._checkpoints.record_metrics(self.steps_done, metrics, self.connect())

    def program(
        self, step_fn: StepFn, features: Mapping[str, Feature], exact: bool = False
    ) -> Program:
        """Builds a program on the run's mesh and variables.

        The layout's `exact_sums` applies only if `exact` is true.
        """
        return Program(
            step_fn,
            features,
            layout=self.layout if exact else self.layout.without_exact_sums(),
            cluster=self.connect(),
            variables=self._variables,
            seed=self.config.random_seed,
            xla=self.config.xla,
        )

    def _step_fn(
        self, mode: ModeKeys, decode_options: DecodeOptions | None = None, to_train: bool = False
    ) -> StepFn:
        """Returns the step function of a mode."""

        def step_fn(mesh: Mesh, features: dict[str, mtf.Tensor]) -> Mapping[str, mtf.Tensor]:
            is_first = self._variables is None
            getter = self._checkpoints.size_guard(to_train) if is_first else None
            with tf.compat.v1.variable_scope("", custom_getter=getter):
                return self._spec(mode, mesh, features, decode_options).outputs()

        return step_fn

    def _spec(
        self,
        mode: ModeKeys,
        mesh: Mesh,
        features: dict[str, mtf.Tensor],
        decode_options: DecodeOptions | None = None,
    ) -> EstimatorSpec:
        """Calls the model function; passes the optional arguments that it accepts."""
        optional = {"config": self.config, "decode_options": decode_options}
        arguments = {name: optional[name] for name in optional if name in self._model_fn_takes}
        return self._model_fn(mesh, features, mode, self._hparams, **arguments)

    def _open(self, inputs: Inputs | InputFn) -> Inputs:
        """Sets up the devices, then calls `inputs` if it is a function; returns the inputs."""
        self.connect()
        return inputs() if callable(inputs) else inputs

    def _placer(self, mode: ModeKeys, inputs: Inputs) -> _Place:
        """Returns a function that places a batch and returns it with its program."""
        program_of = inputs.by_shapes(lambda features: self.build(mode, features))

        def place(batch: Batch) -> tuple[Program, PlacedFeatures]:
            # For a batch of unknown shapes, the first program's `place` raises an error.
            program = program_of(batch)
            return program, program.place(batch)

        return place

    def _train_with(
        self,
        saver: RunSaver,
        program: Program,
        inputs: Inputs,
        place: _Place,
        training: Training,
        hooks: Sequence[Hook],
    ) -> int:
        """Trains with hooks and checkpoints; returns the signal that ended the training, or 0."""
        first_step, config, size = training.steps_done, self.config, self._loop_size(program)
        with contextlib.ExitStack() as stack:
            checkpoints = self._checkpoints.hook(saver, self.lock, first_step, training.max_steps)
            progress = None
            if program.cluster.is_main_process:
                progress = TrainingProgress(first_step, training.max_steps, checkpoints.policy.next)
                stack.enter_context(progress)
                self._heartbeat = Heartbeat(config.output_dir)
                stack.callback(setattr, self, "_heartbeat", None)
            standard_hooks = default_hooks(
                config,
                program,
                inputs,
                self._hparams,
                self._loss_fn,
                first_step=first_step,
                log=self.log,
                heartbeat=self._heartbeat,
                progress=progress,
            )
            run_info = {"max_steps": training.max_steps, "run": os.path.abspath(config.output_dir)}
            self.log.write("began", first_step, run_info)
            interrupt = stack.enter_context(
                InterruptHandler(program.cluster, first_step, config.grace_seconds)
            )
            steps = range(first_step, training.max_steps)
            batches = stack.enter_context(
                prefetched(lambda step: place(inputs.stream[step]), steps, ahead=2 + size)
            )
            # The lock is first, because other hooks write files. Saving is last, so that a step is
            # saved only after all other hooks have seen it.
            all_hooks = [LockHook(self.lock), *standard_hooks, *hooks, checkpoints]
            train_loop(batches, training, all_hooks, interrupt, self._count_steps, size)
            if self._heartbeat is not None:  # The last step is saved now.
                self._heartbeat.beat(training.steps_done, "ended", at_once=True)
            return interrupt.result()

    @contextlib.contextmanager
    def _explained(self, saver: RunSaver, inputs: Inputs, place: _Place) -> Iterator[None]:
        """Finds the causes of errors in a training."""
        try:
            yield
        except NonfiniteStepError as bad:
            raise self._diagnose(bad, saver, inputs, place) from None
        except ReplicaMismatchError as differ:
            saver.wait()
            error = name_wrong_device(
                differ, saver.variables, lambda step: self._replay_to(step, inputs)
            )
            self.log.write("replicas_differ", differ.step, {"what": str(error)})
            raise error from None
        except (OSError, UsageError):
            self.lock.check_held()  # Without its directory, a run fails in many ways.
            raise

    def _diagnose(
        self, bad: NonfiniteStepError, saver: RunSaver, inputs: Inputs, place: _Place
    ) -> TrainingDivergedError:
        """Saves the last finite step and finds the cause of the non-finite step.

        The variables already contain the update of the non-finite step. A replay of the steps
        before it recovers the earlier values: bit for bit, except on a GPU without
        `config.deterministic`.
        """
        self.log.write("diverged", bad.step, {"what": str(bad)})
        logging.error("%s", bad)
        saver.wait()
        last_good = bad.step - 1
        if self._replay_to(last_good, inputs) < last_good:
            saver.save(last_good)
            saver.wait()
        batch = inputs.stream[last_good]
        measure = self.magnitude_program(features_of_batch(batch, inputs.features))
        first = first_nonfinite(measure(batch, step=last_good))
        if first is None:
            program, placed = place(batch)
            return TrainingDivergedError(bad, replayed_cause(program(placed, step=last_good)))
        return TrainingDivergedError(bad, f"The first tensor that is not finite is the {first}.")

    def _loss_fn(self, mesh: Mesh, features: dict[str, mtf.Tensor]) -> mtf.Tensor:
        """Returns the loss as training computes it."""
        return self._spec(ModeKeys.LOSS, mesh, features).outputs()["loss"]

    def _count_steps(self, steps_done: int) -> None:
        self.steps_done = steps_done
