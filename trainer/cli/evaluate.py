"""`t2tp_eval`: evaluates checkpoints of a run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import flags as absl_flags

from t2tp import checkpoint
from t2tp.decoding import DecodeOptions
from t2tp.object_store.mirror import address_of
from t2tp.text_table import text_table
from t2tp.trainer.cli.spec_from_flags import spec_of_run
from t2tp.trainer.cli.train import building, joined
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.experiment import Experiment
from t2tp.trainer.inference.harness import HarnessTasks
from t2tp.trainer.inference.run_decoder import RunDecoder, check_writes, codec_for
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory, find, find_all
from t2tp.trainer.run_spec import RunSpec


def run(flags: absl_flags.FlagValues) -> None:
    """Evaluates the checkpoints that the flags name and prints their metrics."""
    with as_usage_error(ValueError, LookupError, OSError, ModuleNotFoundError):
        spec = spec_of_run(flags, needs_data=not flags.tasks)
        paths = _checkpoints(flags)
        tasks = _tasks(flags, spec) if flags.tasks else None
    with joined(flags, spec) as cluster:
        if tasks is not None:
            _run_tasks(tasks, spec, paths, flags.task_batch_size)
            return
        with as_usage_error(ValueError, LookupError, OSError):
            config = replace(spec.config, checkpoint_path=str(paths[0]))
            experiment = Experiment(replace(spec, config=config))
        rows = _evaluate(experiment, paths, spec.model, prints=cluster.is_main_process)
    if cluster.is_main_process:
        print(_table(rows), file=sys.stderr)


def _checkpoints(flags: absl_flags.FlagValues) -> list[Path]:
    """Finds the checkpoints that the flags name."""
    directory = checkpoint_directory(flags.output_dir)
    if flags.checkpoint_path == "all":
        paths = [checkpoint.step_directory(directory, n) for n in checkpoint.all_steps(directory)]
        if not paths:
            raise FileNotFoundError(f"{flags.output_dir} holds no finished checkpoint")
        return paths
    given = flags.checkpoint_path
    return [saved.path for saved in (find_all(given) if given else [find(flags.output_dir)])]


def _tasks(flags: absl_flags.FlagValues, spec: RunSpec) -> HarnessTasks:
    """Finds the tasks that the flags name."""
    check_writes(spec.model)
    if spec.problem.reads_inputs:
        raise UsageError(f"--tasks is for language models, and {spec.problem.name} has inputs")
    spec.check_same_data()
    codec_for(spec.problem, spec.data_dir)
    return HarnessTasks(
        flags.tasks,
        flags.task_dir,
        num_fewshot=flags.num_fewshot,
        limit=flags.task_limit,
        apply_chat_template=flags.apply_chat_template,
        log_samples=flags.log_samples,
    )


def _run_tasks(tasks: HarnessTasks, spec: RunSpec, paths: Sequence[Path], batch_size: int) -> None:
    """Evaluates each checkpoint on the tasks; process 0 prints and writes the results."""
    for path in paths:
        path_spec = replace(spec, config=replace(spec.config, checkpoint_path=str(path)))
        with building(spec.model), as_usage_error(ValueError, OSError):
            estimator = path_spec.make_estimator()
            decoder = RunDecoder(path_spec, estimator, DecodeOptions(1, batch_size=batch_size))
            results = tasks.run(path_spec, decoder)
            if estimator.connect().is_main_process:
                tasks.write(results, spec.config.output_dir, estimator.steps_done)


def _evaluate(
    experiment: Experiment, paths: Sequence[Path], model: str, prints: bool
) -> list[dict]:
    """Evaluates each checkpoint; process 0 prints its metrics at once."""
    rows = []
    for path in paths:
        with building(model):
            step, metrics = experiment.measure(path)
        rows.append({"checkpoint": address_of(path), "step": step, **metrics})
        if prints:
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _table(rows: Sequence[dict]) -> str:
    """Formats steps and metrics in columns."""
    names = [name for name in rows[0] if name != "checkpoint"]
    cells = [names] + [
        [str(row["step"]), *(f"{row[name]:.4f}" for name in names[1:])] for row in rows
    ]
    return text_table(cells)
