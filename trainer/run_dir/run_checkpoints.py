"""Restores a run's variables from its checkpoints, and creates the saver of new checkpoints."""

import contextlib
import math
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from t2tp import checkpoint
from t2tp.atomic_file import unfinished_path
from t2tp.building.adapters import DOWN
from t2tp.checkpoint import BestMetric, Checkpoint, Retention
from t2tp.checkpoint.errors import DamagedCheckpointError
from t2tp.checkpoint.reading import BASE, BATCH_SIZES
from t2tp.checkpoint.restore import check_same_save, restore_latest
from t2tp.checkpoint.variables import CheckpointMismatchError, metadata_of, restore
from t2tp.mesh.layout import Layout
from t2tp.problems.data.batch_sizes import BatchSizes
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.processes.cluster import Cluster
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.processes.multiprocess import checking_same_checkpoint
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory, find
from t2tp.trainer.run_dir.run_lock import RunLock, RunLockedError
from t2tp.trainer.run_dir.run_saver import CheckpointHook, EverySeconds, EverySteps, RunSaver
from t2tp.trainer.run_dir.token_rows import MatchedRows, rows_between
from t2tp.trainer.run_dir.warm_start import WarmStart, inherit_files, warm_start

# Max ratio of a program's values to its checkpoint's, which may lack the optimizer's state.
_MAX_RATIO = 16


def size_guard(saved: Checkpoint | None) -> Callable[..., Any]:
    """Returns a variable getter that refuses a program far larger than its checkpoint.

    The hparams may be somebody else's: building a program of 10,000 layers, and their initial
    values, would take long before a restore could compare it with the checkpoint.
    """
    if saved is None or BASE in saved.metadata:
        return lambda getter, *args, **kwargs: getter(*args, **kwargs)
    total, num_saved = 0, sum(math.prod(shape) for shape in saved.shapes().values())

    def get(getter: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal total
        total += math.prod(kwargs["shape"])
        if total > _MAX_RATIO * num_saved:
            raise CheckpointMismatchError(
                f"the checkpoint {saved.path} has {num_saved:,} values, and the model of these"
                " hparams has far more",
                saved.path,
            )
        return getter(name, *args, **kwargs)

    return get


def _refuse_adapters(getter: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
    if name.endswith(DOWN):
        raise _no_base(name.removesuffix(DOWN))
    return getter(name, *args, **kwargs)


def _no_base(frozen: str) -> UsageError:
    return UsageError(
        f"lora_rank trains adapters and freezes the weights, such as {frozen}:"
        " name the run or checkpoint that has them with --warm_start_from"
    )


class RunCheckpoints:
    """Restores and saves the checkpoints of a run.

    Attributes:
      batch_sizes: batch size of each step trained so far; None if unknown.
    """

    def __init__(
        self,
        config: RunConfig,
        layout: Layout,
        vocabulary: Callable[[], Vocabulary | None] = lambda: None,
    ) -> None:
        """Parses the settings without reading the directory.

        `vocabulary` returns the vocabulary of the run's data, for a warm start; see `rows_between`.

        Raises:
          ValueError: a checkpoint setting cannot be parsed.
        """
        self._config = config
        self._layout = layout
        self._vocabulary = vocabulary
        self._directory = checkpoint_directory(config.output_dir)
        best = BestMetric.parse(config.keep_best_metric) if config.keep_best_metric else None
        every = config.keep_checkpoint_every_n_hours
        self._retention = Retention(config.keep_checkpoint_max, every, best)
        self._warm_start = WarmStart.parse(config.warm_start_from)
        self._damaged: tuple[Path, ...] = ()  # Checkpoints that restoring has skipped.
        self._saver: RunSaver | None = None
        self._matched: MatchedRows | None = None  # Set by a warm start.
        self.batch_sizes: BatchSizes | None = None

    def load(self, variables: Variables, *, to_train: bool, last_step: int | None = None) -> int:
        """Restores variables from `config.checkpoint_path`, or else the latest readable checkpoint.

        Without a checkpoint, training starts from the initial values, or from a warm start.

        If `to_train` is set, the checkpoint must not have variables that `variables` lacks. In
        the run's directory, checkpoints of steps after `last_step` are ignored.

        Returns:
          The training step of the restored variables; 0 for initial values.

        Raises:
          CheckpointMismatchError: the checkpoint has other variables.
          FileNotFoundError: there is no checkpoint to evaluate or predict with.
          UnusableCheckpointError: the checkpoint is damaged and there is no earlier checkpoint.
          UsageError: `to_train` is set together with `config.checkpoint_path`, or the model has
            adapters but the config names no warm start with the adapters' base.
          ProcessMismatchError: processes have opened different checkpoints.
        """
        try:
            with checking_same_checkpoint():
                return self._load(variables, to_train, last_step)
        except CheckpointMismatchError as error:
            if not error.only_optimizer_differs:
                raise
            flag = f"--warm_start_from={shlex.quote(str(error.path))}"
            raise CheckpointMismatchError(
                f"{error}: a new run with {flag} begins with the model's"
                " values and a fresh optimizer"
            ) from error

    def size_guard(self, to_train: bool) -> Callable[..., Any]:
        """Returns `size_guard` of the checkpoint that `load` would restore.

        If a training has no checkpoint and no warm start, the getter refuses adapters, before any
        variable is initialized.
        """
        saved = None
        with contextlib.suppress(OSError):
            last = checkpoint.last_finished(self._directory)
            path = self._config.checkpoint_path or (last and str(last.path))
            if to_train and not path and self._warm_start is None:
                return _refuse_adapters
            saved = find(path) if path else None
        return size_guard(saved)

    def _load(self, variables: Variables, to_train: bool, last_step: int | None) -> int:
        variables.base_elsewhere = self._base_elsewhere()
        if self._config.checkpoint_path:
            return self._load_named(variables, to_train)
        restored = restore_latest(self._directory, variables, strict=to_train, last_step=last_step)
        if restored is not None:
            self._damaged = restored.damaged
            self.batch_sizes = _batch_sizes_in(restored.metadata)
            return restored.step
        if not to_train:
            raise FileNotFoundError(
                f"{self._config.output_dir} holds no finished checkpoint; train there first"
            )
        return self._warm_start_from(variables)

    def _warm_start_from(self, variables: Variables) -> int:
        """Loads the config's warm start, if any; returns the training step to start from."""
        frozen = next((v.spec.name for v in variables if v.spec.frozen), None)
        if self._warm_start is None and frozen is not None:
            raise _no_base(frozen)
        if self._warm_start is None:
            return 0
        self._matched = rows_between(self._warm_start.path, self._vocabulary())
        table, step = warm_start(
            self._warm_start,
            variables,
            self._matched,
            self._config.warm_start_optimizer,
            self._config.weights,
        )
        if variables.cluster.is_main_process:
            logging.info("%s", table)
        return step

    def inherit_files(self) -> None:
        """Copies the Hugging Face files of the warm start's run; see `warm_start.inherit_files`."""
        if self._warm_start is not None and self._matched is not None:
            with as_usage_error(OSError):
                inherit_files(self._config.output_dir, self._warm_start, self._matched)

    def _base_elsewhere(self) -> Path | None:
        """Returns the warm start's checkpoint, the first place to look for the base of adapters.

        The path of the base that was recorded with the adapters may be outdated.
        """
        if self._warm_start is None:
            return None
        with contextlib.suppress(OSError):
            return find(self._warm_start.path).path
        return None

    def _load_named(self, variables: Variables, to_train: bool) -> int:
        """Restores `config.checkpoint_path`."""
        path = self._config.checkpoint_path
        if to_train:
            raise UsageError(
                f"checkpoint_path={path} is only for evaluation and prediction; to train from it,"
                f" start a new run with warm_start_from={path}"
            )
        saved = find(path)
        check_same_save(saved, variables.cluster)
        restore(saved, variables, strict=False)
        return saved.step

    def go_back(self, variables: Variables, last_step: int) -> int:
        """Restores the latest checkpoint up to `last_step`, as `load` does; returns its step."""
        # Without a checkpoint, the run began with the initial values.
        fresh = Variables(self._layout, variables.cluster, self._config.random_seed)
        variables.loaded_from_base.clear()
        for variable in variables:
            initial = fresh.create(variable.spec)
            for pnum, own in zip(variable.local_pnums, variable.slices, strict=True):
                own.assign(initial.slice_of(pnum))
        return self.load(variables, to_train=True, last_step=last_step)

    def check_untouched(self, cluster: Cluster, steps_done: int) -> None:
        """Checks that the run has no checkpoint of a later step than `steps_done`.

        The caller must hold the run's lock. Also renames the damaged checkpoints that `load` has
        skipped.

        Raises:
          RunLockedError: another process has trained since the restore.
        """
        latest = None
        if cluster.is_main_process:
            for directory in self._damaged:
                if os.path.lexists(directory):
                    with as_usage_error(OSError):
                        aside = checkpoint.set_aside(directory)
                    logging.warning("%s is kept as %s", directory, aside)
            latest = checkpoint.last_finished(self._directory)
        step = cluster.process_broadcast("newest", latest and latest.step)
        self._damaged = ()
        if step is not None and step > steps_done:
            raise RunLockedError(
                f"another process has trained in {self._config.output_dir} meanwhile: its latest"
                f" checkpoint is of step {step}, and this process is at step {steps_done}."
                " Start again to continue from that checkpoint"
            )

    def check_writable(self) -> None:
        """Checks that every process can write checkpoints, before the first step is trained.

        Raises:
          UsageError: no file can be written in the directory.
        """
        probe = unfinished_path(
            self._directory / "writable"
        )  # If the process is killed here, `apply_retention` deletes the file.
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"checkpoints cannot be written into {self._directory}: {error.strerror}"
            ) from error

    def saver_of(
        self, variables: Variables, batch_sizes: BatchSizes | None, saved: Callable[[int], None]
    ) -> RunSaver:
        """Creates the saver of a training.

        `saved` is called with the step of each complete checkpoint; see `RunSaver`.
        """
        self.batch_sizes = batch_sizes
        metadata = metadata_of(variables, self._layout)
        metadata["random_seed"] = self._config.random_seed
        if batch_sizes is not None:
            metadata[BATCH_SIZES] = [list(change) for change in batch_sizes.changes]
        self._saver = RunSaver(self._directory, variables, self._retention, metadata, saved)
        return self._saver

    def hook(
        self, saver: RunSaver, lock: RunLock, steps_done: int, last_step: int
    ) -> CheckpointHook:
        """Creates the hook that saves checkpoints when due, and at `last_step`."""
        seconds, cluster = self._config.save_checkpoints_secs, saver.variables.cluster
        if seconds is not None:
            return CheckpointHook(EverySeconds(seconds, cluster, steps_done), saver, lock)
        return CheckpointHook(EverySteps(int(self._config.first_save), last_step), saver, lock)

    def record_metrics(self, step: int, metrics: Mapping[str, float], cluster: Cluster) -> None:
        """Records metrics in a step's checkpoint, or keeps them until the checkpoint is saved.

        Records nothing if the variables are from `config.checkpoint_path`.
        """
        if self._config.checkpoint_path:
            return
        if self._saver is not None:
            self._saver.metrics = step, dict(metrics)
        if cluster.is_main_process:
            # The checkpoint may not be saved yet, or a training process may have deleted it.
            with as_usage_error(OSError), contextlib.suppress(FileNotFoundError):
                checkpoint.record_metrics(checkpoint.step_directory(self._directory, step), metrics)

    def advice_on_resuming(self) -> str:
        """Returns advice on resuming, for the error about a lost process."""
        saved = checkpoint.last_finished(self._directory)
        if saved is None:
            return f"{self._directory} holds no finished checkpoint yet: start all processes again."
        return (
            f"The last finished checkpoint is {saved.path}, of step {saved.step}: start all"
            " processes again to resume from it."
        )


def _batch_sizes_in(metadata: Mapping[str, Any]) -> BatchSizes | None:
    changes = metadata.get(BATCH_SIZES)
    try:
        return BatchSizes(tuple((step, size) for step, size in changes)) if changes else None
    except ValueError as error:
        raise DamagedCheckpointError(f"The checkpoint's {BATCH_SIZES}: {error}") from error
