"""What a run is: the flags, what the saved run has, and the defaults, put together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl import logging

from t2tp import problems, registry
from t2tp.hparam import HParams, describe_differences
from t2tp.problems.problem import Problem
from t2tp.problems.user_dir import import_user_dir
from t2tp.trainer import run_files
from t2tp.trainer.errors import UsageError
from t2tp.trainer.flag_groups import check_given
from t2tp.trainer.hparams_fit import check_fits
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_files import SavedRun

# What a run keeps when it goes on, unless the flag is given; and what a new run has.
_DEFAULTS = {
    "model": None,
    "problem": None,
    "problem_options": "",
    "hparams_set": None,
    "train_steps": 250_000,
    "random_seed": 0,
}

# flag -> the hparam that it is short for
_SHORT = {"mesh_shape": "mesh_shape", "layout": "layout", "precision": "activation_dtype"}

# Fields of the RunConfig that do not come from a flag of their name alone.
_NOT_FLAGS = ("output_dir", "random_seed", *_SHORT)


@dataclass(frozen=True)
class Plan:
    """What the flags ask for, together with what the saved run has.

    Attributes:
      settings: what a run keeps, by the flags' names.
      problem: the problem.
      hparams: with all changes.
      config: how the run is carried out.
      changes: a line for everything in which it is not the saved run.
    """

    settings: dict[str, Any]
    problem: Problem
    hparams: HParams
    config: RunConfig
    changes: list[str]

    def check_same_data(self, data_dir: str) -> None:
        """Refuses data other than those that the run was trained on.

        Raises:
          OtherRunError, RunFileError, OSError: see `run_files.check_same_data`.
          FileNotFoundError, DamagedDataError: see `Problem.digest`.
        """
        digest = self.problem.digest(data_dir)
        run_files.check_same_data(self.config, self.settings["problem"], data_dir, digest)


def make(flags: absl_flags.FlagValues) -> Plan:
    """Reads the flags and the saved run, and refuses what cannot be.

    Args:
      flags: those of `t2tp_trainer`, or of a program that has some of them.

    Raises:
      UsageError, ValueError, LookupError, OSError: it cannot be; nothing was written.
    """
    check_given(flags, ("output_dir", "data_dir"))
    saved = run_files.read(flags.output_dir)
    run_files.check_known(flags.output_dir, saved)
    settings = {name: _setting(flags, name, saved) for name in _DEFAULTS}
    settings["t2t_usr_dir"] = _user_dir(flags, saved)
    registry.model(settings["model"])
    problem = problems.find(settings["problem"], settings["problem_options"])
    if saved is not None:
        run_files.check_same_run(flags.output_dir, saved, settings["model"], settings["problem"])
    hparams, changes = _hparams(flags, settings["hparams_set"], saved, problem)
    if saved is None:
        warning = check_fits(settings["model"], settings["hparams_set"], hparams)
        if warning:
            logging.warning("%s", warning)
    given = {f.name: value_of(flags, f.name) for f in fields(RunConfig) if f.name not in _NOT_FLAGS}
    config = RunConfig.of(
        hparams,
        flags.output_dir,
        random_seed=settings["random_seed"],
        **{name: value for name, value in given.items() if value is not None},
    )
    changes += _changed_settings(saved, settings)
    return Plan(settings, problem, hparams, config, changes)


def _user_dir(flags: absl_flags.FlagValues, saved: SavedRun | None) -> str | None:
    """The folder of the user's own problems, models and sets; that of the saved run is imported.

    Raises:
      UsageError: the saved run had one, which cannot be imported.
    """
    given = value_of(flags, "t2t_usr_dir")
    if given:  # The program has imported it.
        return str(Path(given).expanduser().absolute())
    before = saved and saved.flags.get("t2t_usr_dir")
    if not before:
        return None
    try:
        import_user_dir(before)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"the run in {flags.output_dir} was started with --t2t_usr_dir={before}, which cannot"
            f" be imported ({error}): say with --t2t_usr_dir where it is now"
        ) from error
    logging.info("imported %s, as the run was started with it", before)
    return before


def value_of(flags: absl_flags.FlagValues, name: str) -> Any:
    """The value of a flag; None if the program has no such flag."""
    return flags[name].value if name in flags else None


def _setting(flags: absl_flags.FlagValues, name: str, saved: SavedRun | None) -> Any:
    """The flag's value if it is given, else the saved run's, else the default.

    Raises:
      UsageError: there is none.
    """
    for value in (value_of(flags, name), saved and saved.flags.get(name), _DEFAULTS[name]):
        if value is not None:
            return value
    if name == "hparams_set" and saved is not None:
        return ""  # A run that was begun from Python; it has its hparams, and no set.
    raise UsageError(f"--{name} is missing, and {flags.output_dir} holds no run to go on with")


def hparams_to_print(flags: absl_flags.FlagValues) -> HParams:
    """The hparams that the flags name, of a new run or of one that is there; nothing is written.

    Raises:
      UsageError, ValueError, LookupError, OSError: there are none.
    """
    saved = run_files.read(flags.output_dir) if flags.output_dir else None
    if saved is None and not flags.hparams_set:
        raise UsageError("--hparams_set is missing: name the set to print, or an --output_dir")
    _user_dir(flags, saved)
    name, options = (
        value_of(flags, each) or (saved and saved.flags.get(each))
        for each in ("problem", "problem_options")
    )
    problem = problems.find(name, options or "") if name else None
    set_name = flags.hparams_set or (saved.flags.get("hparams_set") if saved else "") or ""
    return _hparams(flags, set_name, saved, problem)[0]


def _hparams(
    flags: absl_flags.FlagValues, set_name: str, saved: SavedRun | None, problem: Problem | None
) -> tuple[HParams, list[str]]:
    """The run's hparams, and a line for each that saved run, set and flags do not agree on."""
    before = None if saved is None else saved.hparams
    if saved is not None and before is None:
        _check_named(flags, set_name)
    preset = _preset(set_name, value_of(flags, "hparams_set") is not None, before)
    if problem is not None:
        problem.change_hparams(preset)
    hparams = preset.copy() if before is None else run_files.resumed_hparams(before, preset)
    given = _drawn(flags, hparams)
    for text in flags.hparams:
        given.update(hparams.parse(text))
    for flag, name, value in _short_flags(flags):
        value = hparams.parse(f"{name}={value}")[name]
        if given.setdefault(name, value) != value:
            raise UsageError(
                f"--{flag}={flags[flag].value} and --hparams={name}={given[name]} differ: give one"
                " of them"
            )
    _check_worker_gpu(flags, hparams)
    return hparams, [] if before is None else describe_differences(before, preset, given)


def _check_named(flags: absl_flags.FlagValues, set_name: str) -> None:
    """Refuses to guess the hparams of a run that has lost them.

    Raises:
      UsageError: they are not named.
    """
    lost = f"{Path(flags.output_dir, run_files.HPARAMS_FILE)} is lost"
    if value_of(flags, "hparams_set") is None:
        was = f" (the run was last started with {set_name})" if set_name else ""
        raise UsageError(
            f"{lost}, and with it the run's hparams: put a copy of it back, or say what they were"
            f" with --hparams_set{was} and --hparams"
        )
    logging.warning(
        "%s: the hparams are those of --hparams_set=%s and --hparams", lost, flags.hparams_set
    )


def _preset(set_name: str, is_given: bool, saved: HParams | None) -> HParams:
    """A registered set, or what was saved with a run."""
    if saved is not None and not is_given and (not set_name or set_name.endswith(".json")):
        return saved.copy()
    if not set_name.endswith(".json"):
        return registry.hparams(set_name)
    if not Path(set_name).is_file():
        raise FileNotFoundError(f"--hparams_set={set_name}: there is no such file")
    return HParams.load(set_name)


def _drawn(flags: absl_flags.FlagValues, hparams: HParams) -> dict[str, Any]:
    """Sets what --hparams_range and --trial draw; returns it by name."""
    name, trial = value_of(flags, "hparams_range"), value_of(flags, "trial")
    if (name is None) != (trial is None):
        raise UsageError("--hparams_range=NAME and --trial=K belong together: give both or neither")
    return {} if name is None else registry.ranged_hparams(name).apply(trial, hparams)


def _short_flags(flags: absl_flags.FlagValues) -> list[tuple[str, str, str]]:
    """(flag, hparam, value) for each flag that is given and short for an hparam."""
    short = [(flag, name, value_of(flags, flag)) for flag, name in _SHORT.items()]
    workers = value_of(flags, "worker_gpu")
    short.append(("worker_gpu", "mesh_shape", workers and f"data:{workers}"))
    reaction = value_of(flags, "on_nonfinite")
    short.append(("on_nonfinite", "skip_nonfinite_steps", reaction and str(reaction == "skip")))
    return [(flag, name, value) for flag, name, value in short if value is not None]


def _check_worker_gpu(flags: absl_flags.FlagValues, hparams: HParams) -> None:
    """Refuses --worker_gpu with a layout that does not split the batch over its axis."""
    if value_of(flags, "worker_gpu") is None:
        return
    rules = [rule.strip() for rule in hparams.layout.split(";")]
    if "batch:data" not in rules:
        raise UsageError(
            f"--worker_gpu={flags.worker_gpu} is a mesh with the axis 'data', over which the layout"
            f" {hparams.layout!r} does not split the batch: add the rule batch:data to --layout"
        )


def _changed_settings(saved: SavedRun | None, settings: dict[str, Any]) -> list[str]:
    """A line for each flag that is not what the saved run had."""
    if saved is None:
        return []
    return [
        f"{name}: {saved.flags[name]} in the saved run; using {value} from --{name}"
        for name, value in settings.items()
        if name in saved.flags and saved.flags[name] != value
    ]
