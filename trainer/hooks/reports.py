"""Periodic reports of loss, metrics and speed."""

import os
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp.problems.metrics import reported
from t2tp.processes.cluster import Cluster
from t2tp.trainer.hooks.hook import Hook, Training
from t2tp.trainer.hooks.mfu import Utilization

# Takes the number of steps done and scalars by name.
Sink = Callable[[int, Mapping[str, float]], None]


@dataclass(eq=False)
class ReportHook(Hook):
    """Reports scalars every N steps and at the last step.

    A report of the training's first step has no speed.

    Attributes:
      every: steps from one report to the next.
      sinks: functions to send the scalars to.
      batch_size: examples per step; None if it varies.
      metrics: names of metrics to compute if a step has their sums.
      utilization: computes the MFU from a step time; None: unknown.
    """

    every: int
    sinks: Sequence[Sink]
    _: KW_ONLY
    cluster: Cluster
    batch_size: int | None
    metrics: Sequence[str] = ()
    utilization: Utilization | None = None
    _last: tuple[int, float, Counter[str]] = field(init=False)
    _is_first: bool = field(init=False)

    def begin(self, training: Training) -> None:
        """Starts measuring."""
        self._last, self._is_first = self._now(training), True

    def after_step(self, training: Training, outputs: Mapping[str, np.ndarray]) -> None:
        """Reports if a report is due."""
        step = training.steps_done
        is_due = step % self.every == 0 or step == training.max_steps
        if is_due or self._is_first:
            step_scalars = scalars_in(outputs)  # Waits for the devices, so that the time is right.
        if is_due:
            sums = _below("metrics/", outputs)
            # TensorFlow traces and compiles in the first step, so its time says nothing about
            # later steps. Of several reports of a launch, only the first has a speed.
            is_timed = not self._is_first and training.steps_launched > self._last[0]
            speed = self._speed(training, sums) if is_timed else {}
            # If a metric has the same name as a scalar of the step, the scalar is reported, because
            # a custom model function may define its own loss.
            names = sorted({"perplexity", *self.metrics})
            metrics = reported(names, sums) if sums.get("tokens") else {}
            scalars = metrics | step_scalars | speed
            scalars |= memory_in_use(self.cluster)
            for sink in self.sinks:
                sink(step, scalars)
        if self._is_first:
            self._last, self._is_first = self._now(training), False

    def _speed(self, training: Training, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes seconds per step since the last report, their parts by purpose, and rates."""
        before, self._last = self._last, self._now(training)
        steps = self._last[0] - before[0]
        parts = {what: s / steps for what, s in (self._last[2] - before[2]).items()}
        step_time = (self._last[1] - before[1]) / steps
        speed = {"step_time": step_time, "time/compute": step_time - parts.get("data", 0.0)}
        speed |= {f"time/{what}": seconds for what, seconds in parts.items()}
        if self.batch_size is not None:
            speed["examples_per_second"] = self.batch_size / step_time
        if "tokens" in sums:
            speed["tokens_per_second"] = sums["tokens"] / step_time
            devices = len(self.cluster.devices)
            speed["tokens_per_second_per_device"] = speed["tokens_per_second"] / devices
        if self.utilization is not None:
            speed["mfu"] = self.utilization.at(step_time)
        return speed

    @staticmethod
    def _now(training: Training) -> tuple[int, float, Counter[str]]:
        clock = training.clock
        # The devices have finished the whole launch when a value of one of its steps is read.
        return training.steps_launched, clock.seconds(), Counter(clock.parts())


def scalars_in(outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the loss and scalars of a step by their names in TensorBoard."""
    return {"loss": float(outputs["loss"])} | _below("scalars/", outputs)


def _below(prefix: str, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {n.removeprefix(prefix): float(outputs[n]) for n in outputs if n.startswith(prefix)}


_GB = 1e9


def memory_in_use(cluster: Cluster) -> dict[str, float]:
    """Returns the current and the peak memory use of this process's devices, in 10^9 bytes.

    For each GPU, returns the memory that TensorFlow's allocator has handed out, as
    `memory_gb/processor_0` and `memory_gb/processor_0_peak`. For virtual CPU devices, returns the
    resident set of the process, as `memory_gb/process` and `memory_gb/process_peak`.
    """
    num_bytes = {}
    for pnum in cluster.local_pnums:
        if "GPU" in cluster.devices[pnum]:
            info = tf.config.experimental.get_memory_info(cluster.devices[pnum])
            num_bytes[f"processor_{pnum}"] = info["current"]
            num_bytes[f"processor_{pnum}_peak"] = info["peak"]
    if not num_bytes:
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        num_bytes["process"] = resident * os.sysconf("SC_PAGE_SIZE")
        num_bytes["process_peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {f"memory_gb/{name}": size / _GB for name, size in num_bytes.items()}
