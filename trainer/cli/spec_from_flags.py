"""Builds a `RunSpec` from a program's flags, the saved run's settings, and defaults."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

import t2tp.hparams
import t2tp.models  # noqa: F401  (registers the models)
from t2tp import problems, registry
from t2tp.hparam import HParams, describe_differences
from t2tp.layers.positions import context_length
from t2tp.problems.problem import Problem
from t2tp.trainer import run_yaml
from t2tp.trainer.cli.config_file import AUTO
from t2tp.trainer.cli.flag_groups import check_given
from t2tp.trainer.errors import UsageError
from t2tp.trainer.eval_config import EarlyStopping, EvalConfig
from t2tp.trainer.hparams_fit import check_fits, completed, read_set
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.run_files import SavedRun
from t2tp.trainer.run_dir.warm_start import WarmStart
from t2tp.trainer.run_spec import RunSpec, find_problem

# Settings that a resumed run keeps unless the flag is given, and their defaults for a new run.
_DEFAULTS = {
    "model": None,
    "problem": None,
    "problem_options": "",
    "hparams_set": None,
    "train_steps": 250_000,
    "random_seed": 0,
}

# flag -> the hparam that it sets
_SHORT = {
    "mesh_shape": "mesh_shape",
    "layout": "layout",
    "precision": "activation_dtype",
    "on_nonfinite": "on_nonfinite",
}

# Flags that a run does not save: their values are among the hparams, or differ between processes.
_NOT_SAVED = (
    *("config", "hparams", "worker_gpu", "hparams_range", "trial"),
    *("num_processes", "process_id", "coordinator", "compilation_cache_dir"),
)


def spec_from_flags(flags: absl_flags.FlagValues) -> RunSpec:
    """Merges the flags with the saved run's flags, and checks that they are consistent.

    `flags` has the flags of `t2tp_trainer`, or of some of its groups.
    """
    check_given(flags, ("output_dir", "data_dir"))
    saved = run_files.read(flags.output_dir)
    run_files.check_known(flags.output_dir, saved)
    settings = {name: _setting(flags, name, saved) for name in _DEFAULTS}
    settings["t2t_usr_dir"] = _user_dir(flags, saved)
    model, problem_name, options = (settings[n] for n in ("model", "problem", "problem_options"))
    problem = find_problem(flags.output_dir, saved, model, problem_name, options)
    hparams, changes = _hparams(flags, settings["hparams_set"], saved, problem)
    if saved is None:
        check_fits(model, settings["hparams_set"], hparams)
    config = RunConfig(**_given(flags, RunConfig) | {"random_seed": settings["random_seed"]})
    if is_auto(flags):
        size = problem.vocab_sizes(flags.data_dir)["targets"]
        # Imported here, because a run with a layout needs no planner.
        from t2tp.trainer import auto_layout, planning

        shape, user_dir = planning.image_shape_of(problem), settings["t2t_usr_dir"]
        hparams = auto_layout.with_best_layout(
            model, hparams, size, shape, user_dir, config.teacher
        )
    given = [name for name in flags if flags[name].present]
    saved_names = [name for name in given if name not in (*_NOT_SAVED, *_SHORT)]
    spec = RunSpec(
        model,
        problem_name,
        options,
        problem,
        hparams,
        config,
        flags.data_dir,
        settings["train_steps"],
        _evaluation(flags),
        saved,
        flags={name: flags[name].value for name in saved_names} | settings,
        changes=[*changes, *_changed_settings(saved, settings)],
    )
    _check_worker_gpu(flags, spec)
    return spec


def spec_of_run(flags: absl_flags.FlagValues, needs_data: bool = False) -> RunSpec:
    """Returns the spec of an existing run.

    Unless `needs_data`, the directory of a converted run's tokenizer replaces a missing --data_dir:
    decoding needs only the tokenizer. A run that was trained after its conversion needs its data.
    """
    run_files.read_run(flags.output_dir)
    if not (flags.data_dir or needs_data):
        flags["data_dir"].value = huggingface_files.tokenizer_directory(flags.output_dir)
    return spec_from_flags(flags)


def _given(flags: absl_flags.FlagValues, kind: type[RunConfig | EvalConfig]) -> dict[str, Any]:
    """Returns the values of the flags that are fields of a dataclass, except None."""
    values = {each.name: value_of(flags, each.name) for each in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _evaluation(flags: absl_flags.FlagValues) -> EvalConfig:
    """Returns the settings of evaluations; a program without their flags has the defaults."""
    named = _given(flags, EvalConfig)
    if value_of(flags, "split"):
        named["eval_split"] = flags.split
    if value_of(flags, "eval_use_test_set"):
        named["eval_split"] = "test"
    if value_of(flags, "eval_early_stopping_steps") is not None:
        named["early_stopping"] = EarlyStopping(
            flags.eval_early_stopping_steps,
            flags.eval_early_stopping_metric,
            flags.eval_early_stopping_metric_delta,
            flags.eval_early_stopping_metric_minimize,
        )
    return EvalConfig(**named)


def _user_dir(flags: absl_flags.FlagValues, saved: SavedRun | None) -> str | None:
    """Returns the directory of the user's own problems, models and sets.

    Somebody else's run must not execute code, so a directory that the saved run names is an error
    unless the flag is given too.
    """
    directory = value_of(flags, "t2t_usr_dir")
    if directory:  # `run_program` has imported this directory.
        return str(Path(directory).expanduser().absolute())
    before = saved and saved.flags.get("t2t_usr_dir")
    if before:
        raise UsageError(
            f"the run in {flags.output_dir} was started with --t2t_usr_dir={before},"
            " which is code: give the flag again if you trust it"
        )
    return None


def value_of(flags: absl_flags.FlagValues, name: str) -> Any:
    """Returns the value of a flag; None if the program has no such flag."""
    return flags[name].value if name in flags else None


def _setting(flags: absl_flags.FlagValues, name: str, saved: SavedRun | None) -> Any:
    """Returns the flag's value if it is given, else the saved run's value, else the default."""
    for value in (value_of(flags, name), saved and saved.flags.get(name), _DEFAULTS[name]):
        if value is not None:
            return value
    if name == "hparams_set" and saved is not None:
        return ""  # A run that was started from Python has hparams, but no set.
    raise UsageError(f"--{name} is missing, and {flags.output_dir} holds no run to resume")


def hparams_to_print(flags: absl_flags.FlagValues) -> HParams:
    """Returns the hparams that the flags give a new run or a resumed run; writes no files."""
    saved = run_files.read(flags.output_dir) if flags.output_dir else None
    if saved is None and not flags.hparams_set:
        raise UsageError("--hparams_set is missing: name the set to print, or an --output_dir")
    _user_dir(flags, saved)
    saved_flags = saved.flags if saved else {}
    name = value_of(flags, "problem") or saved_flags.get("problem")
    options = value_of(flags, "problem_options") or saved_flags.get("problem_options") or ""
    problem = problems.find(name, options) if name else None
    set_name = flags.hparams_set or saved_flags.get("hparams_set") or ""
    return _hparams(flags, set_name, saved, problem)[0]


def _hparams(
    flags: absl_flags.FlagValues, set_name: str, saved: SavedRun | None, problem: Problem | None
) -> tuple[HParams, list[str]]:
    """Returns the run's hparams, and a line for each change since the run was saved."""
    preset = _preset(set_name, value_of(flags, "hparams_set") is not None, saved)
    if problem is not None:
        problem.change_hparams(preset, value_of(flags, "data_dir"))
    hparams = preset.copy() if saved is None else run_files.resumed_hparams(saved.hparams, preset)
    changes = _of_config(flags, hparams) | _drawn(flags, hparams)
    if saved is None and hparams.values().get("context_length") == 0:
        hparams.context_length = _context_of_source(value_of(flags, "warm_start_from"))
    given: dict[str, Any] = {}
    for text in flags.hparams:
        given.update(hparams.parse(text))
    givers = {name: f"--hparams={name}={value}" for name, value in given.items()}
    for flag, name, value in _short_flags(flags):
        value = hparams.parse(f"{name}={value}")[name]
        giver = f"--{flag}={flags[flag].value}"
        if given.setdefault(name, value) != value:
            raise UsageError(f"{giver} and {givers[name]} differ: give one of them")
        givers[name] = giver
    changes |= given
    return hparams, [] if saved is None else describe_differences(saved.hparams, preset, changes)


def _context_of_source(warm_start_from: str | None) -> int:
    """Returns the context of the run that training starts from; 0 if it is unknown.

    A shorter `max_length` in the new run then shortens its training rows, and not the model.
    """
    source = WarmStart.parse(warm_start_from or "")
    run = run_files.run_of(source.path) if source else None
    saved = run_files.read(run) if run else None
    return context_length(saved.hparams) if saved and "max_length" in saved.hparams else 0


def _of_config(flags: absl_flags.FlagValues, hparams: HParams) -> dict[str, Any]:
    """Applies the hparams in the file of --config, and returns these hparams."""
    path = value_of(flags, "config")
    values: dict[str, Any] = {}
    if path:
        for name, value in run_yaml.read(path).hparams.items():
            if value != AUTO:  # `config_file` turns mesh_shape: auto into a flag.
                values[name] = hparams.set_texts(name, value)
    return values


def _preset(set_name: str, is_given: bool, saved: SavedRun | None) -> HParams:
    """Returns a registered set, the hparams of a `run.yaml`, or the saved run's hparams.

    The hparams of a run are completed with hparams that its model has gained since.
    """
    is_file = set_name.endswith(run_yaml.SUFFIX)
    if saved is not None and not is_given and (is_file or not set_name):
        return completed(saved.hparams, saved.flags.get("model"))
    return read_set(set_name)


def _drawn(flags: absl_flags.FlagValues, hparams: HParams) -> dict[str, Any]:
    """Applies the trial of --hparams_range and --trial; returns the hparams that the trial sets."""
    name, trial = value_of(flags, "hparams_range"), value_of(flags, "trial")
    if (name is None) != (trial is None):
        raise UsageError("--hparams_range=NAME and --trial=K belong together: give both or neither")
    return {} if name is None else registry.ranged_hparams(name).apply(trial, hparams)


def _short_flags(flags: absl_flags.FlagValues) -> list[tuple[str, str, str]]:
    """Returns (flag, hparam, value) for each given flag that sets an hparam."""
    short = [(flag, name, value_of(flags, flag)) for flag, name in _SHORT.items()]
    workers = value_of(flags, "worker_gpu")
    short.append(("worker_gpu", "mesh_shape", workers and f"data:{workers}"))
    return [each for each in short if each[2] not in (None, AUTO)]


def is_auto(flags: absl_flags.FlagValues) -> bool:
    """Whether to search for mesh and layout."""
    chosen = [value_of(flags, name) == AUTO for name in ("mesh_shape", "layout")]
    if any(chosen) and not all(chosen):
        raise UsageError("--mesh_shape=auto and --layout=auto belong together: give both")
    return all(chosen)


def _check_worker_gpu(flags: absl_flags.FlagValues, spec: RunSpec) -> None:
    """With --worker_gpu, checks that the layout splits the batch over the axis `data`."""
    if value_of(flags, "worker_gpu") is None:
        return
    if "data" not in [axis.name for axis in spec.layout.axes_of("batch")]:
        raise UsageError(
            f"--worker_gpu={flags.worker_gpu} needs the batch split over the axis 'data', and the"
            f" layout {spec.hparams.layout!r} does not split the batch: add the rule batch:data"
        )


def _changed_settings(saved: SavedRun | None, settings: dict[str, Any]) -> list[str]:
    """Returns a line for each setting that differs from the saved run's."""
    before = saved.flags if saved else {}
    return [
        f"{name}: {before[name]} in the saved run; using {value} from --{name}"
        for name, value in settings.items()
        if name in before and before[name] != value
    ]
