"""Trains, evaluates and predicts with a model function, on a mesh."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import checkpoint
from t2tp.explanation import Explanation, explain
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.layout import Layout
from t2tp.mesh.on_paper import ProgramOnPaper
from t2tp.mesh.program import Feature, Placed, Program
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing
from t2tp.trainer.hooks import CheckpointHook, Hook, ReportHook, Training
from t2tp.trainer.inputs import Batch, Inputs, shapes_of_batch, shapes_of_features
from t2tp.trainer.interrupt import InterruptHandler, TrainingInterrupted
from t2tp.trainer.model_fn import ModeKeys, ModelFn
from t2tp.trainer.prefetch import Prefetcher
from t2tp.trainer.progress import Progress
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.summaries import SummaryWriter
from t2tp.trainer.together import connect_as


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
    """

    def __init__(self, model_fn: ModelFn, config: RunConfig, hparams: Any = None) -> None:
        """Builds nothing yet.

        Args:
          model_fn: `(mesh, features, mode, hparams) -> EstimatorSpec`, building an mtf graph.
          config: the mesh, the folder, how often to save.
          hparams: handed to `model_fn`.

        Raises:
          LayoutError: mesh shape or layout cannot be read.
          ValueError: `config.xla` with a mesh of several devices.
        """
        self.config = config
        self.layout = Layout(config.mesh_shape, config.layout)
        if config.xla and self.layout.size > 1:
            raise ValueError(
                f"xla compiles the step of one device, and the mesh {config.mesh_shape} has"
                f" {self.layout.size}: choose one or the other"
            )
        self.steps_done = 0
        self._model_fn = model_fn
        self._hparams = hparams
        self._cluster: Cluster | None = None
        self._variables: Variables | None = None
        self._programs: dict[tuple, Program] = {}
        self._has_trained = False
        self._num_loaded = 0  # Variables that have got the values they begin with.

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
                self._cluster.peers.advice = self._how_to_go_on
            if any("GPU" in device for device in self._cluster.devices):
                tf.config.experimental.enable_op_determinism()
        return self._cluster

    @property
    def latest_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The newest finished checkpoint of the run."""
        return checkpoint.latest(self._checkpoints)

    @property
    def _checkpoints(self) -> Path:
        return checkpointing.checkpoint_folder(self.config.output_dir)

    def build(self, mode: ModeKeys, features: Mapping[str, Feature]) -> Program:
        """Builds the program of a mode and gives its variables their values. Writes nothing.

        A second call with features of the same shapes returns the same program.

        Raises:
          LayoutError: the layout cannot work for the model.
          CheckpointMismatchError: the newest checkpoint has other variables.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          UnusableCheckpointError: the checkpoint is damaged.
        """
        key = (mode, *((name, f.shape.to_string, f.dtype) for name, f in features.items()))
        if key not in self._programs:
            program = Program(
                lambda mesh, inputs: self._model_fn(mesh, inputs, mode, self._hparams).outputs(),
                features,
                mesh_shape=self.config.mesh_shape,
                layout=self.config.layout,
                cluster=self.connect(),
                variables=self._variables,
                seed=self.config.random_seed,
                xla=self.config.xla,
            )
            self._variables = program.variables
            training_begins = mode == ModeKeys.TRAIN and not self._has_trained
            if training_begins or len(program.variables) > self._num_loaded:
                self._load(mode, program.variables)
                self._num_loaded = len(program.variables)
            self._has_trained |= mode == ModeKeys.TRAIN
            self._programs[key] = program
        return self._programs[key]

    def explain(self, mode: ModeKeys, features: Mapping[str, Feature]) -> Explanation:
        """Says how the program of a mode lies on its mesh. Takes no devices, and no checkpoint.

        Raises:
          LayoutError: the layout cannot work for the model.
        """
        program = ProgramOnPaper(
            lambda mesh, inputs: self._model_fn(mesh, inputs, mode, self._hparams).outputs(),
            features,
            mesh_shape=self.config.mesh_shape,
            layout=self.config.layout,
        )
        return explain(program)

    def train(self, inputs: Inputs, max_steps: int, hooks: Sequence[Hook] = ()) -> None:
        """Trains until `max_steps` steps have been done since the beginning of the run.

        Args:
          inputs: step k is fed `inputs.stream[k]`.
          max_steps: of the whole run; if as many are done, nothing happens.
          hooks: are called around the steps, before the step is saved.

        Raises:
          TrainingInterrupted: by SIGINT or SIGTERM, after the step was saved.
          MissingProcessError: another process failed or is gone.
        """
        place = self._placer(ModeKeys.TRAIN, inputs)
        program = self.build(ModeKeys.TRAIN, inputs.features)
        training = Training(self.steps_done, max_steps)
        if training.steps_done >= max_steps:
            logging.info("%d of %d steps are done already", training.steps_done, max_steps)
            return
        program.trace()
        save = CheckpointHook(
            self.config.save_checkpoints_steps, lambda step: self._save(step, program.variables)
        )
        # Saving comes last: what others do at a step is done when it is saved.
        all_hooks = [*hooks, save]
        with contextlib.ExitStack() as stack:
            if program.cluster.leads:
                progress = stack.enter_context(Progress(training.steps_done, max_steps))
                all_hooks.insert(0, self._report_hook(inputs.batch_size, progress))
            interrupt = stack.enter_context(InterruptHandler(program.cluster, training.steps_done))
            steps = range(training.steps_done, max_steps)
            placed = stack.enter_context(Prefetcher(lambda step: place(inputs.stream[step]), steps))
            self._run_steps(placed, training, all_hooks, interrupt)
            came = interrupt.result()
        if came:
            raise TrainingInterrupted(
                f"interrupted after step {self.steps_done}, which is saved", came
            )

    def evaluate(self, inputs: Inputs, steps: int = -1) -> dict[str, float]:
        """Adds up the model's metrics, and the host's counts, over batches.

        Of several processes each counts in some of the batches.

        Args:
          inputs: with a stream that has a length.
          steps: how many batches; 0 or -1: all.

        Returns:
          the sums, by name, the same in all processes.
        """
        place = self._placer(ModeKeys.EVAL, inputs)
        count = len(inputs.stream)  # type: ignore[arg-type]
        if steps > 0:
            count = min(count, steps)
        sums: defaultdict[str, float] = defaultdict(float)
        counted: defaultdict[str, float] = defaultdict(float)
        cluster = self.connect()

        def prepare(step: int) -> tuple:
            batch = inputs.stream[step]
            mine = step % cluster.num_processes == cluster.process_id
            return place(batch), inputs.counts(batch) if mine else {}

        with Prefetcher(prepare, range(count)) as prepared:
            for (program, placed), counts in prepared:
                outputs = program(placed, step=self.steps_done)
                for name in outputs:
                    sums[name.removeprefix("metrics/")] += float(outputs[name])
                for name, number in counts.items():
                    counted[name] += number
        said = [json.loads(each) for each in cluster.exchange("sums", json.dumps([sums, counted]))]
        total = defaultdict(float, said[0][0])  # The model's are whole in each process.
        for _, counts in said:
            for name, number in counts.items():
                total[name] += number
        return dict(total)

    def predict(self, features: Mapping[str, Feature], batch: Batch) -> Mapping[str, np.ndarray]:
        """The model's predictions for a batch.

        Args:
          features: what is in the batch; the first call with these shapes builds a program.
          batch: global arrays by name.

        Returns:
          `EstimatorSpec.predictions`, whole arrays.
        """
        return self.build(ModeKeys.PREDICT, features)(batch)

    def parameter_counts(self) -> tuple[int, int]:
        """How many numbers the model learns, and how many the optimizer keeps besides."""
        sizes: Counter[bool] = Counter()
        for variable in self._variables or ():
            sizes[variable.spec.trainable] += variable.spec.shape.size
        return sizes[True], sizes[False]

    def _load(self, mode: ModeKeys, variables: Variables) -> None:
        """Gives the variables the values of the newest checkpoint, as process 0 sees it.

        Where there is none, training begins with the initial ones.
        """
        saved = self._newest_for_all()
        if saved is not None:
            checkpointing.check_fit(saved, variables, whole=mode == ModeKeys.TRAIN)
            checkpointing.restore(saved, variables)
            self.steps_done = saved.step
        elif mode == ModeKeys.TRAIN:
            self.steps_done = 0
        else:
            raise FileNotFoundError(
                f"{self.config.output_dir} holds no finished checkpoint; train there first"
            )

    def _newest_for_all(self) -> checkpoint.Checkpoint | None:
        """The newest checkpoint that process 0 finds, opened."""
        cluster = self.connect()
        found = self.latest_checkpoint if cluster.leads else None
        step = json.loads(cluster.agree("checkpoint", json.dumps(found and found.step)))
        if found is not None or step is None:
            return found
        return checkpoint.Checkpoint(checkpoint.step_folder(self._checkpoints, step))

    def _save(self, steps_done: int, variables: Variables) -> None:
        """Saves the variables, and deletes the checkpoints that are too many."""
        metadata = {
            "mesh_shape": self.config.mesh_shape,
            "layout": self.config.layout,
            "random_seed": self.config.random_seed,
        }
        checkpointing.save(self._checkpoints, steps_done, variables, metadata)
        if variables.cluster.leads:
            checkpoint.keep(self._checkpoints, self.config.keep_checkpoint_max)

    def _how_to_go_on(self) -> str:
        """What to tell whoever reads that a process is gone."""
        saved = checkpoint.last_finished(self._checkpoints)
        if saved is None:
            return f"{self._checkpoints} holds no finished checkpoint yet: start all again."
        return (
            f"The last finished checkpoint is {saved.path}, of step {saved.step}: start all"
            " processes again, and they go on from there."
        )

    def _placer(self, mode: ModeKeys, inputs: Inputs) -> Callable[[Batch], tuple[Program, Placed]]:
        """What finds the program for a batch, and puts the batch on the devices."""
        programs = {shapes_of_features(kind): self.build(mode, kind) for kind in inputs.kinds}
        usual = self.build(mode, inputs.features)

        def place(batch: Batch) -> tuple[Program, Placed]:
            program = programs.get(shapes_of_batch(batch), usual)  # which refuses what does not fit
            return program, program.place(batch)

        return place

    def _report_hook(self, batch_size: int | None, progress: Progress) -> ReportHook:
        summaries = SummaryWriter(self.config.output_dir)
        return ReportHook(self.config.log_step_count_steps, batch_size, progress, summaries)

    def _run_steps(
        self,
        placed: Iterable[tuple[Program, Placed]],
        training: Training,
        hooks: Sequence[Hook],
        interrupt: InterruptHandler,
    ) -> None:
        """The loop: a step for each placed batch, until somebody interrupts."""
        for hook in hooks:
            hook.begin(training)
        for program, features in placed:
            for hook in hooks:
                hook.before_step(training)
            outputs = program(features, step=training.steps_done)
            training.steps_done += 1
            self.steps_done = training.steps_done
            for hook in hooks:
                hook.after_step(training, outputs)
            if interrupt.stops_after(training.steps_done):
                break
        for hook in hooks:
            hook.end(training)
