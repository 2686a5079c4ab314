"""`RunConfig`: settings of a run's directory, checkpoints, reports and processes."""

import math
import threading
from dataclasses import dataclass, fields
from typing import Annotated, Any

from t2tp.argument_types import checked
from t2tp.choices import WEIGHTS
from t2tp.hparam_limits import Limits
from t2tp.trainer.local_paths import check_local

# Steps between checkpoints if neither steps nor seconds are set.
DEFAULT_SAVE_STEPS = 1000

# Fields that differ between the processes of a run, or describe how a process was started.
_OF_PROCESS = ("num_processes", "process_id", "coordinator")


@checked
@dataclass(frozen=True)
class RunConfig:
    """Settings of a run that do not concern the model.

    The hparams set the mesh (`mesh_shape`, `layout`), the precision (`activation_dtype`) and
    the reaction to non-finite steps (`on_nonfinite`).

    Attributes:
      output_dir: the directory of the run.
      random_seed: seed of initial values, dropout and the order of the data.
      xla: whether XLA compiles the step; see `Program`.
      deterministic: whether GPUs repeat a run bit for bit; None: only several GPUs, whose copies of
        a variable must stay equal. CPUs always do.
      iterations_per_loop: the largest number of steps of a launch; see `t2tp.trainer.loops`. None:
        8 if XLA compiles the step for a GPU, else 1.
      save_checkpoints_steps: steps between checkpoints; the last step is always saved. None: 1000,
        unless `save_checkpoints_secs` is set.
      save_checkpoints_secs: seconds between checkpoints, by the clock of process 0; an alternative
        to `save_checkpoints_steps`.
      keep_checkpoint_max: number of latest checkpoints to keep.
      keep_checkpoint_every_n_hours: also keep the oldest checkpoint and one every N hours.
      keep_best_metric: `min:METRIC` or `max:METRIC`: also keep the checkpoint with the best metric,
        and save each step whose evaluation is the best so far.
      checkpoint_path: the checkpoint to evaluate or predict with instead of the latest; see
        `find_checkpoint.find`. If this checkpoint is damaged, no other checkpoint is used.
      weights: the weights to evaluate, decode and start from, one of `t2tp.choices.WEIGHTS`.
      warm_start_from: PATH or PATH:from=>to;from=>to, a checkpoint with the initial values. It
        is used if `output_dir` has no checkpoint; see `WarmStart`.
      warm_start_optimizer: whether the warm start also restores the optimizer's state and the step.
      teacher: a run, a checkpoint of a run, or a Hugging Face directory, which training imitates
        (distillation); "": none.
      reference_from: such a path, with the reference of preference losses; "": the weights at the
        run's start.
      log_step_count_steps: steps between reports in the log and in TensorBoard.
      log_json: file to append lines of JSON to, see `JsonLog`; `-`: stdout; empty: none.
      histogram_steps: steps between histograms of the trainable variables; None: no histograms.
      check_replicas_every: steps between two checks; 0: no checks. A check compares the devices'
        replicas of variables, and the results that devices compute from the same rows. The replicas
        are also compared before each checkpoint.
      profile_steps: `FIRST:LAST`, the steps to profile, counted from 1; empty: none.
      grace_seconds: max time to save and exit after a signal. After this time, the process exits
        without saving. None: no limit.
      intra_op_parallelism_threads: CPU threads per operation; 0: TensorFlow chooses. This setting
        and the next apply to the whole process, from TensorFlow's start on.
      inter_op_parallelism_threads: operations that run concurrently; 0: TensorFlow chooses.
      num_processes: number of processes of the run. By default, this and the next two settings come
        from TF_CONFIG or Slurm; see `connect`.
      process_id: index of this process, from 0.
      coordinator: `host:port`, a free port on the host of process 0.
    """

    output_dir: str
    random_seed: int = 0
    xla: bool | None = None
    deterministic: bool | None = None
    iterations_per_loop: Annotated[int | None, Limits(min=1)] = None
    save_checkpoints_steps: Annotated[int | None, Limits(min=1, max=math.inf)] = None
    save_checkpoints_secs: Annotated[float | None, Limits(above=0, max=math.inf)] = None
    keep_checkpoint_max: Annotated[int, Limits(min=1, max=math.inf)] = 20
    keep_checkpoint_every_n_hours: float | None = None
    keep_best_metric: str = ""
    checkpoint_path: str = ""
    weights: Annotated[str, Limits(choices=WEIGHTS)] = "averages"
    warm_start_from: str = ""
    warm_start_optimizer: bool = False
    teacher: str = ""
    reference_from: str = ""
    log_step_count_steps: Annotated[int, Limits(min=1)] = 100
    log_json: str = ""
    histogram_steps: Annotated[int | None, Limits(min=1)] = None
    check_replicas_every: Annotated[int, Limits(min=0)] = 0
    profile_steps: str = ""
    grace_seconds: Annotated[float | None, Limits(above=0, max=int(threading.TIMEOUT_MAX))] = None
    intra_op_parallelism_threads: Annotated[int, Limits(min=0)] = 0
    inter_op_parallelism_threads: Annotated[int, Limits(min=0)] = 0
    num_processes: int | None = None
    process_id: int | None = None
    coordinator: str | None = None

    @property
    def first_save(self) -> float:
        """The step of the first checkpoint; infinity if only seconds determine it."""
        if self.save_checkpoints_secs is not None:
            return math.inf
        return self.save_checkpoints_steps or DEFAULT_SAVE_STEPS

    def changed(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults and are the same in all processes."""
        return {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default and each.name not in _OF_PROCESS
        }

    def __post_init__(self) -> None:
        """Raises ValueError if a value is missing or invalid, or if two fields contradict."""
        if not self.output_dir:
            raise ValueError("output_dir is empty: name the directory of the run")
        check_local("output_dir", self.output_dir)
        if self.save_checkpoints_secs is not None and self.save_checkpoints_steps is not None:
            raise ValueError(
                "save_checkpoints_steps and save_checkpoints_secs are both given: choose one"
            )
        if self.profile_steps:
            profile_range(self.profile_steps)


def profile_range(text: str) -> tuple[int, int]:
    """Parses `FIRST:LAST`, two steps counted from 1; raises ValueError for another form."""
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise ValueError(
        f"profile_steps is {text!r}, and must be FIRST:LAST, two steps counted from 1, as in"
        " 100:105"
    )
