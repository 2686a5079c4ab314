"""How a run is carried out: where it writes, on which mesh, how often it saves and reports."""

from __future__ import annotations

from dataclasses import dataclass, fields

from t2tp.hparam import HParams


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run that are no business of the model.

    Attributes:
      output_dir: the folder of the run.
      mesh_shape: axes of the mesh and their sizes, such as `data:2;model:4`; empty: one device.
      layout: rules dimension:axis, such as `batch:data;d_ff:model`.
      random_seed: of initial values, dropout and the order of the data.
      xla: what XLA compiles; see `Program`.
      save_checkpoints_steps: steps from one checkpoint to the next; the last step is always saved.
      keep_checkpoint_max: how many of the newest checkpoints are kept.
      log_step_count_steps: steps from one line in the log, and point in TensorBoard, to the next.
      num_processes: how many processes train together. This and the next two say what `connect`
        would else find in TF_CONFIG, or ask Slurm for.
      process_id: number of this process, from 0.
      coordinator: `host:port`, a free port on the host of process 0.
    """

    output_dir: str
    mesh_shape: str = ""
    layout: str = ""
    random_seed: int = 0
    xla: bool | None = None
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 20
    log_step_count_steps: int = 100
    num_processes: int | None = None
    process_id: int | None = None
    coordinator: str | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be meant.

        Raises:
          ValueError: no output_dir, or a number of steps or checkpoints below 1.
        """
        if not self.output_dir:
            raise ValueError("output_dir is empty: name the folder of the run")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_steps", "_max")) and value < 1:
                raise ValueError(f"{field.name} is {value}, and must be at least 1")

    @classmethod
    def of(cls, hparams: HParams, output_dir: str, **settings: object) -> RunConfig:
        """A config whose mesh and layout are those of the hparams.

        Args:
          hparams: `mesh_shape` and `layout`.
          output_dir: the folder of the run.
          **settings: the other attributes.
        """
        return cls(output_dir, hparams.mesh_shape, hparams.layout, **settings)  # type: ignore[arg-type]
