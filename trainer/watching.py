"""What watches over a training: reports, profile, histograms, heartbeat, guard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from t2tp import mtf
from t2tp.explanation import explain
from t2tp.hparam import HParams
from t2tp.mesh.on_paper import ProgramOnPaper
from t2tp.mesh.program import Mesh, Program
from t2tp.ops.work import product_flops
from t2tp.trainer.guards import StepsHook
from t2tp.trainer.heartbeat import Heartbeat, HeartbeatHook
from t2tp.trainer.histograms import HistogramHook, process_folder
from t2tp.trainer.hooks import Hook, Training
from t2tp.trainer.inputs import Inputs
from t2tp.trainer.json_log import JsonLog
from t2tp.trainer.profile import ProfileHook
from t2tp.trainer.progress import Progress
from t2tp.trainer.reports import ProgressHook, ReportHook, Sink
from t2tp.trainer.run_config import RunConfig, profile_range
from t2tp.trainer.summaries import SummaryWriter
from t2tp.trainer.utilization import Utilization, peak_of

LossFn = Callable[[Mesh, dict[str, mtf.Tensor]], mtf.Tensor]


class PageHook(Hook):
    """Writes at the beginning what does not change: hyperparameters, layout, formula of the MFU."""

    def __init__(
        self,
        summaries: SummaryWriter,
        program: Program,
        hparams: Mapping[str, Any],
        utilization: Utilization | None,
    ) -> None:
        """Says what, and where to."""
        self._summaries = summaries
        self._program = program
        self._hparams = hparams
        self._utilization = utilization

    def begin(self, training: Training) -> None:
        """Writes them."""
        step = training.steps_done
        if self._hparams:
            self._summaries.hparams(self._hparams)
        layout = "\n".join(f"    {line}" for line in str(explain(self._program)).splitlines())
        self._summaries.text(step, "layout", layout)
        if self._utilization is not None:
            self._summaries.text(step, "mfu_formula", self._utilization.describe())
        self._summaries.flush()

    def end(self, training: Training) -> None:
        """Closes the event file."""
        self._summaries.close()


def watching_hooks(
    config: RunConfig,
    program: Program,
    inputs: Inputs,
    hparams: object,
    loss_fn: LossFn,
    *,
    first_step: int,
    log: JsonLog,
    heartbeat: Heartbeat | None,
    progress: Progress | None,
    track: Sink,
) -> list[Hook]:
    """The hooks that watch over a training, in their order.

    Args:
      config: of the run.
      program: that trains.
      inputs: of the training.
      hparams: of the model.
      loss_fn: builds the loss as training does, without an update.
      first_step: steps done before.
      log: for programs.
      heartbeat: for supervisors; None as `progress`.
      progress: for people; None in all processes but the first, which speaks for them.
      track: takes the scalars of reports too.
    """
    hooks: list[Hook] = []
    process_id = program.cluster.process_id
    summaries = SummaryWriter(process_folder(config.output_dir, process_id))
    summaries.resume(first_step)
    if progress is not None and heartbeat is not None:
        utilization = _utilization(config, program, inputs, loss_fn)
        values = hparams.values() if isinstance(hparams, HParams) else hparams
        values = values if isinstance(values, Mapping) else {}
        sinks = [
            summaries.write,
            progress.report,
            lambda step, scalars: log.write("report", step, scalars),
            track,
        ]
        report = ReportHook(
            config.log_step_count_steps,
            sinks,
            cluster=program.cluster,
            batch_size=inputs.batch_size,
            metrics=inputs.metric_names,
            utilization=utilization,
        )
        hooks += [
            PageHook(summaries, program, values, utilization),
            ProgressHook(progress.advance),
            report,
            HeartbeatHook(heartbeat),
        ]
        if config.profile_steps:
            hooks.append(ProfileHook(profile_range(config.profile_steps), config.output_dir))
    hooks.append(StepsHook(config.on_nonfinite == "stop", log, first_step))
    if config.histogram_steps is not None:
        hooks.append(HistogramHook(config.histogram_steps, program.variables, summaries))
    return hooks


def _utilization(
    config: RunConfig, program: Program, inputs: Inputs, loss_fn: LossFn
) -> Utilization | None:
    """None if there are no products, or batches of several kinds."""
    if len(inputs.kinds) > 1:
        return None
    counted = []

    def count(mesh: Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        loss = loss_fn(mesh, features)
        counted.append(product_flops(mesh.graph.operations))
        return {"loss": loss}

    ProgramOnPaper(count, inputs.features)
    if not counted[0]:
        return None
    return Utilization(counted[0], peak_of(program.cluster, config.precision))
