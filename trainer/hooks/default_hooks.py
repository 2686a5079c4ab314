"""The hooks of every training: reports, profile, histograms, heartbeat, checks."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.hparam import HParams
from t2tp.layout_report import explain
from t2tp.ops.flops import matmul_flops
from t2tp.optim.same_rows import LossFn, SameRows
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Program
from t2tp.program.replicas import ReplicaMismatch
from t2tp.program.variables import SlicedVariable, Variables
from t2tp.report.units import size
from t2tp.trainer.hooks.heartbeat import Heartbeat
from t2tp.trainer.hooks.hook import Hook, PeriodicHook, Training, wait_for
from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.hooks.mfu import Utilization, peak_of
from t2tp.trainer.hooks.nonfinite import NonfiniteHook
from t2tp.trainer.hooks.progress import TrainingProgress
from t2tp.trainer.hooks.replicas import ReplicaHook
from t2tp.trainer.hooks.reports import ReportHook
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.run_config import RunConfig, profile_range


@dataclass(frozen=True)
class RunInfoHook(Hook):
    """Writes the constants of a run: hyperparameters, layout report and MFU formula.

    Also refuses a step that the devices cannot hold, because it has the report.
    """

    summaries: SummaryWriter
    program: Program
    hparams: Mapping[str, Any]
    utilization: Utilization | None

    def begin(self, training: Training) -> None:
        """Writes the hyperparameters, the layout report and the MFU formula.

        Raises:
          MemoryError: a device of CPU cores has less memory than the step needs. Without this
            error, the kernel would end the process.
        """
        report = explain(self.program)
        needed, memory = sum(report.data.memory.values()), self.program.device_memory
        if needed > memory:
            raise MemoryError(
                f"a step needs {size(needed)} on each device, and this machine has"
                f" {size(memory)} for each: use a smaller batch, or more microbatches"
            )
        step = training.steps_done
        if self.hparams:
            self.summaries.hparams(self.hparams)
        layout = "\n".join(f"    {line}" for line in str(report).splitlines())
        self.summaries.text(step, "layout", layout)
        if self.utilization is not None:
            self.summaries.text(step, "mfu_formula", self.utilization.describe())
        self.summaries.flush()

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self.summaries.close()


@dataclass(eq=False)
class HistogramHook(PeriodicHook):
    """Writes histograms of the trainable variables every N steps.

    No values are gathered: each slice is written by the process that has its first copy. Process 0
    writes into the run's directory, and each other process into its own subdirectory, which
    TensorBoard shows as a separate run.

    Attributes:
      summaries: this process's event file.
    """

    variables: Variables
    summaries: SummaryWriter

    def act(self, training: Training) -> None:
        """Writes histograms."""
        with training.clock.stopped("histograms"):
            for variable in self.variables:
                values = self._values(variable) if variable.spec.trainable else None
                if values is not None:
                    self.summaries.histogram(training.steps_done, variable.spec.name, values)
            self.summaries.flush()

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self.summaries.close()

    def _values(self, variable: SlicedVariable) -> tf.Tensor | None:
        """Copies this process's share of the values to the host; None if there are none."""
        local = self.variables.cluster.local_pnums
        with tf.device("CPU:0"):
            slices = [
                tf.reshape(tf.cast(variable.value_of(pnum), tf.float32), [-1])
                for pnum in variable.owners().values()
                if pnum in local
            ]
            return tf.concat(slices, 0) if slices else None


class ProfileHook(Hook):
    """Profiles a range of steps; writes no profile if training resumes after the range's start."""

    def __init__(self, steps: tuple[int, int], directory: str) -> None:
        """Sets the first and the last step, counted from 1, and the run's directory.

        TensorFlow writes into the subdirectory `plugins/profile/`, where TensorBoard looks.
        """
        self._first, self._last = steps
        self._directory = directory
        self._is_on = False
        self._mark = contextlib.ExitStack()

    def ends_loop(self, step: int) -> bool:
        """Whether the range of steps begins or ends after this step."""
        return step in (self._first - 1, self._last)

    def before_step(self, training: Training) -> None:
        """Starts the profiler at the first step of the range, and marks each step."""
        if training.steps_done + 1 == self._first:
            tf.profiler.experimental.start(self._directory)
            self._is_on = True
        if self._is_on:
            # The profiler treats a numbered root event (`_r`) as a step. The event lasts until the
            # next step, because the devices still compute when the step's call returns.
            mark = tf.profiler.experimental.Trace("train", step_num=training.steps_done + 1, _r=1)
            self._mark.close()
            self._mark.enter_context(mark)

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Stops the profiler after the last step of the range."""
        if self._is_on and training.steps_done >= self._last:
            wait_for(training, outputs)
            self._stop(training)

    def end(self, training: Training) -> None:
        """Writes the unfinished profile if the training ends before the last step of the range."""
        if self._is_on:
            self._stop(training)

    def _stop(self, training: Training) -> None:
        self._mark.close()
        with training.clock.stopped("profile"):
            tf.profiler.experimental.stop()
        self._is_on = False
        steps = f"{self._first} to {training.steps_done}"
        logging.info(f"profile of the steps {steps}: {self._directory}/plugins/profile")


def default_hooks(
    config: RunConfig,
    program: Program,
    inputs: Inputs,
    hparams: object,
    loss_fn: LossFn,
    *,
    first_step: int,
    log: JsonLog,
    heartbeat: Heartbeat | None,
    progress: TrainingProgress | None,
) -> list[Hook]:
    """Returns the default hooks of a training, in the order of their calls.

    `loss_fn` builds the training loss, without an update. `first_step` steps are done before this
    training. Only process 0 has `heartbeat` and `progress`.
    """
    hooks: list[Hook] = []
    values = hparams.values() if isinstance(hparams, HParams) else hparams
    values = values if isinstance(values, Mapping) else {}
    process_id = program.cluster.process_id
    own_directory = os.path.join(config.output_dir, f"process_{process_id}")
    summaries = SummaryWriter(own_directory if process_id else config.output_dir)
    summaries.resume(first_step)
    if progress is not None and heartbeat is not None:
        dtype = values.get("activation_dtype", "float32")
        utilization = _utilization(dtype, program, inputs, loss_fn)
        sinks = [
            summaries.write,
            progress.report,
            lambda step, scalars: log.write("report", step, scalars),
        ]
        report = ReportHook(
            config.log_step_count_steps,
            sinks,
            cluster=program.cluster,
            batch_size=inputs.batch_size,
            metrics=inputs.metric_names,
            utilization=utilization,
        )
        hooks += [RunInfoHook(summaries, program, values, utilization), progress, report, heartbeat]
        if config.profile_steps:
            hooks.append(ProfileHook(profile_range(config.profile_steps), config.output_dir))
    stops = values.get("on_nonfinite", "stop") == "stop"
    hooks.append(NonfiniteHook(stops, log, first_step))
    if config.check_replicas_every:
        microbatches = int(values.get("microbatches", 1))
        same_rows = inputs.by_shapes(lambda kind: SameRows(loss_fn, program, kind, microbatches))

        def compute(step: int) -> ReplicaMismatch | None:
            batch = inputs.stream[step]
            return same_rows(batch).mismatch(batch, step)

        hooks.append(ReplicaHook(config.check_replicas_every, program.variables, compute))
    if config.histogram_steps is not None:
        hooks.append(HistogramHook(config.histogram_steps, program.variables, summaries))
    return hooks


def _utilization(
    dtype: str, program: Program, inputs: Inputs, loss_fn: LossFn
) -> Utilization | None:
    """Returns a step's FLOPs and the devices' peak.

    Returns None if there are no matmuls, or several shapes of batches.
    """
    if len(inputs.kinds) > 1:
        return None
    counted = []

    def count(mesh: Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        loss = loss_fn(mesh, features)
        counted.append(matmul_flops(mesh.graph.operations))
        return {"loss": loss}

    AbstractProgram(count, inputs.features)
    if not counted[0]:
        return None
    return Utilization(counted[0], *peak_of(program.cluster, dtype))
