"""How a run is carried out: where it writes, on which mesh, how often it saves and reports."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

from t2tp.hparam import HParams
from t2tp.nearest import nearest
from t2tp.trainer import trackers
from t2tp.trainer.local_paths import check_local

PRECISIONS = ("float32", "bfloat16", "float16")
ON_NONFINITE = ("stop", "skip", "ignore")


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run that are no business of the model.

    Attributes:
      output_dir: the folder of the run.
      mesh_shape: axes of the mesh and their sizes, such as `data:2;model:4`; empty: one device.
      layout: rules dimension:axis, such as `batch:data;d_ff:model`.
      precision: what activations and products are computed in: float32, bfloat16 or float16. A
        registered model reads it as the hparam `activation_dtype`, with which it must agree; a
        model function of your own has a parameter `config` to read it from.
      random_seed: of initial values, dropout and the order of the data.
      xla: what XLA compiles; see `Program`.
      save_checkpoints_steps: steps from one checkpoint to the next; the last step is always saved.
        None: 1000, unless there are `save_checkpoints_secs`.
      save_checkpoints_secs: in place of steps: seconds from one checkpoint to the next, by the
        clock of process 0.
      keep_checkpoint_max: how many of the newest checkpoints are kept.
      keep_checkpoint_every_n_hours: besides, the oldest and one every so many hours are kept.
      keep_best_metric: `min:METRIC` or `max:METRIC`: besides, the checkpoint is kept whose
        evaluation was best; a step that is evaluated as better than all of them is saved.
      checkpoint_path: what to evaluate or predict with, in place of the newest checkpoint; see
        `checkpointing.find`. Nothing else is taken if it is damaged.
      warm_start_from: where training finds its initial values, as long as `output_dir` has no
        checkpoint: PATH or PATH:from=>to;from=>to; see `WarmStart`.
      log_step_count_steps: steps from one line in the log, and point in TensorBoard, to the next.
      log_json: file to which lines of JSON are added, see `JsonLog`; `-`: stdout; empty: none.
      tracker: `wandb` or `mlflow`, which get scalars too, with a project as in `wandb:my_project`;
        empty: none.
      histogram_steps: steps from one histogram of each trainable variable to the next; None: none.
      profile_steps: `FIRST:LAST`, the steps (from 1) to write a profile of; empty: none.
      on_nonfinite: what to do at a step whose loss or gradients are infinite or no numbers: `stop`;
        `skip`: the graph's own guard leaves it out, for which a registered model reads the hparam
        `skip_nonfinite_steps`; `ignore`.
      grace_seconds: how long after a SIGTERM or SIGINT the program may take to save and leave; it
        then leaves at once. None: as long as it takes.
      intra_op_parallelism_threads: threads that one operation may use on the CPU; 0: TensorFlow
        chooses. This and the next hold for the whole process, from TensorFlow's start on.
      inter_op_parallelism_threads: operations that may run at the same time; 0: TensorFlow chooses.
      num_processes: how many processes train together. This and the next two say what `connect`
        would else find in TF_CONFIG, or ask Slurm for.
      process_id: number of this process, from 0.
      coordinator: `host:port`, a free port on the host of process 0.
    """

    output_dir: str
    mesh_shape: str = ""
    layout: str = ""
    precision: str = "float32"
    random_seed: int = 0
    xla: bool | None = None
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int = 20
    keep_checkpoint_every_n_hours: float | None = None
    keep_best_metric: str = ""
    checkpoint_path: str = ""
    warm_start_from: str = ""
    log_step_count_steps: int = 100
    log_json: str = ""
    tracker: str = ""
    histogram_steps: int | None = None
    profile_steps: str = ""
    on_nonfinite: str = "stop"
    grace_seconds: float | None = None
    intra_op_parallelism_threads: int = 0
    inter_op_parallelism_threads: int = 0
    num_processes: int | None = None
    process_id: int | None = None
    coordinator: str | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be meant.

        Raises:
          ValueError: no output_dir, a number of steps or checkpoints below 1 or of threads below
            0, two different times between checkpoints, or an unknown precision.
        """
        if not self.output_dir:
            raise ValueError("output_dir is empty: name the folder of the run")
        check_local("output_dir", self.output_dir)
        trackers.check(self.tracker)
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or isinstance(value, str):
                continue
            if field.name.endswith(("_steps", "_max")) and value < 1:
                raise ValueError(f"{field.name} is {value}, and must be at least 1")
            if field.name.endswith("_threads") and value < 0:
                raise ValueError(f"{field.name} is {value}, and must be at least 0")
        if self.save_checkpoints_secs is not None:
            if self.save_checkpoints_steps is not None:
                raise ValueError(
                    "save_checkpoints_steps and save_checkpoints_secs are both given: choose one"
                )
            if not self.save_checkpoints_secs > 0:
                raise ValueError(
                    f"save_checkpoints_secs is {self.save_checkpoints_secs}, and must be above 0"
                )
        if self.precision not in PRECISIONS:
            known = nearest(self.precision, PRECISIONS, "precisions")
            raise ValueError(f"precision is {self.precision!r}: {known}")
        if self.on_nonfinite not in ON_NONFINITE:
            known = nearest(self.on_nonfinite, ON_NONFINITE, "values")
            raise ValueError(f"on_nonfinite is {self.on_nonfinite!r}: {known}")
        if self.profile_steps:
            profile_range(self.profile_steps)
        if self.grace_seconds is not None and not 0 < self.grace_seconds <= threading.TIMEOUT_MAX:
            raise ValueError(
                f"grace_seconds is {self.grace_seconds}, and must be above 0 and at most"
                f" {threading.TIMEOUT_MAX:.0f}"
            )

    @classmethod
    def of(cls, hparams: HParams, output_dir: str, **settings: object) -> RunConfig:
        """A config whose mesh, layout and precision are those of the hparams.

        Args:
          hparams: `mesh_shape`, `layout` and, where the set declares it, `activation_dtype`.
          output_dir: the folder of the run.
          **settings: the other attributes.
        """
        if "activation_dtype" in hparams:
            settings = {"precision": hparams.activation_dtype, **settings}
        if "skip_nonfinite_steps" in hparams and hparams.skip_nonfinite_steps:
            settings = {"on_nonfinite": "skip", **settings}
        return cls(output_dir, hparams.mesh_shape, hparams.layout, **settings)  # type: ignore[arg-type]


def profile_range(text: str) -> tuple[int, int]:
    """Reads `FIRST:LAST`, the first and the last step of a profile, counted from 1.

    Raises:
      ValueError: it is something else.
    """
    first, colon, last = text.partition(":")
    if colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise ValueError(
        f"profile_steps is {text!r}, and must be FIRST:LAST, two steps counted from 1, as in"
        " 100:105"
    )
