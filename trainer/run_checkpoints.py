"""The checkpoints of a run: where its values come from, and where they are saved."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from absl import logging

from t2tp import checkpoint
from t2tp.mesh.cluster import Cluster
from t2tp.mesh.variables import Variables
from t2tp.trainer import checkpointing, restoring
from t2tp.trainer.checkpoint_hook import CheckpointHook, EverySeconds, EverySteps
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_lock import RunLockedError
from t2tp.trainer.run_saver import RunSaver, retention_of
from t2tp.trainer.warm_start import WarmStart, warm_start
from t2tp.whole_file import unfinished_path

# From one checkpoint to the next, where nobody says anything.
DEFAULT_SAVE_STEPS = 1000


class RunCheckpoints:
    """What a run finds in its folder of checkpoints, and what it adds."""

    def __init__(self, config: RunConfig) -> None:
        """Looks for nothing yet.

        Args:
          config: of the run.

        Raises:
          ValueError: a setting of checkpoints cannot be read.
        """
        self._config = config
        self._folder = checkpointing.checkpoint_folder(config.output_dir)
        self._retention = retention_of(config)
        self._warm_start = WarmStart.parse(config.warm_start_from)
        self._damaged: tuple[Path, ...] = ()  # Those that were passed over when restoring.
        self._saver: RunSaver | None = None

    @property
    def latest(self) -> checkpoint.Checkpoint | None:
        """The newest finished one."""
        return checkpoint.latest(self._folder)

    def load(self, variables: Variables, *, to_train: bool) -> int:
        """Gives variables the values of the newest checkpoint that can be read, or of the one that
        the config names.

        Where there is none, training begins with the initial ones, or those of another run.

        Args:
          variables: get the values.
          to_train: whether training goes on with them, which takes all of a checkpoint.

        Returns:
          how many training steps are behind the values.

        Raises:
          CheckpointMismatchError: the checkpoint has other variables.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          UnusableCheckpointError: the checkpoint is damaged, and there is none before it.
          UsageError: the config names a checkpoint to train from.
        """
        if self._config.checkpoint_path:
            return self._load_named(variables, to_train)
        restored = restoring.restore_newest(self._folder, variables, whole=to_train)
        if restored is not None:
            self._damaged = restored.damaged
            return restored.step
        if not to_train:
            raise FileNotFoundError(
                f"{self._config.output_dir} holds no finished checkpoint; train there first"
            )
        if self._warm_start is not None:
            table = warm_start(self._warm_start, variables)
            if variables.cluster.leads:
                logging.info("%s", table)
        return 0

    def _load_named(self, variables: Variables, to_train: bool) -> int:
        """Loads `config.checkpoint_path`, and no other."""
        path = self._config.checkpoint_path
        if to_train:
            raise UsageError(
                f"checkpoint_path={path} says what to evaluate or predict with; to train from it,"
                f" begin a new run with warm_start_from={path}"
            )
        saved = checkpointing.find(path)
        restoring.check_same_save(saved, variables.cluster)
        restoring.restore(saved, variables, whole=False)
        return saved.step

    def check_untouched(self, cluster: Cluster, steps_done: int) -> None:
        """Sees to it, when the run is locked, that its newest checkpoint is where we go on from.

        Damaged ones that were passed over are set aside.

        Raises:
          RunLockedError: another process has trained meanwhile.
        """
        newest = None
        if cluster.leads:
            for folder in self._damaged:
                if os.path.lexists(folder):
                    with as_usage_error(OSError):
                        aside = checkpoint.set_aside(folder)
                    logging.warning("%s is kept as %s", folder, aside)
            newest = checkpoint.last_finished(self._folder)
        step = json.loads(cluster.agree("newest", json.dumps(newest and newest.step)))
        self._damaged = ()
        if step is not None and step > steps_done:
            raise RunLockedError(
                f"{self._config.output_dir} has been trained in by another process: its newest"
                f" checkpoint is of step {step}, and this process is at step {steps_done}."
                " Start again, to go on from there"
            )

    def check_writable(self) -> None:
        """Refuses a folder in which the first save would fail, while nothing is lost yet.

        Each process tries it, as each writes its part.

        Raises:
          UsageError: nothing can be written there.
        """
        probe = unfinished_path(self._folder / "writable")  # If we are killed, `keep` deletes it.
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"checkpoints cannot be written into {self._folder}: {error.strerror}"
            ) from error

    def saver_of(self, variables: Variables, saved: Callable[[int], None]) -> RunSaver:
        """What saves a training that begins.

        Args:
          variables: that are trained.
          saved: see `RunSaver`.
        """
        config = self._config
        metadata = checkpointing.metadata_of(variables, config.mesh_shape, config.layout)
        metadata["random_seed"] = config.random_seed
        self._saver = RunSaver(self._folder, variables, self._retention, metadata, saved)
        return self._saver

    def hook(self, saver: RunSaver, steps_done: int, last_step: int) -> CheckpointHook:
        """What saves when it is time, in a training from one step to another."""
        steps, seconds = self._config.save_checkpoints_steps, self._config.save_checkpoints_secs
        if seconds is not None:
            cadence = EverySeconds(seconds, saver.variables.cluster, steps_done)
            return CheckpointHook(cadence, saver)
        return CheckpointHook(EverySteps(steps or DEFAULT_SAVE_STEPS, last_step), saver)

    def record_metrics(self, step: int, metrics: Mapping[str, float], cluster: Cluster) -> None:
        """Notes what an evaluation has found with the checkpoint of its step, saved or to be saved.

        One that the config names is left as it is.
        """
        if self._config.checkpoint_path:
            return
        if self._saver is not None:
            self._saver.note_metrics(step, metrics)
        if cluster.leads:
            # Another process that trains may have deleted it, or there is none yet.
            with as_usage_error(OSError), contextlib.suppress(FileNotFoundError):
                checkpoint.record_metrics(checkpoint.step_folder(self._folder, step), metrics)

    def how_to_go_on(self) -> str:
        """What to tell whoever reads that a process is gone."""
        saved = checkpoint.last_finished(self._folder)
        if saved is None:
            return f"{self._folder} holds no finished checkpoint yet: start all again."
        return (
            f"The last finished checkpoint is {saved.path}, of step {saved.step}: start all"
            " processes again, and they go on from there."
        )
