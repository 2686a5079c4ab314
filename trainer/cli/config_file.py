"""Sets flags from the file of `--config`; the command line overrides them.

Somebody else may have written the file. So only flags in `flags.toml` are set, by their parsers,
and a flag with effects outside of the run, such as a file to write, must be on the command line.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from t2tp.trainer import run_yaml

# Value of --mesh_shape and --layout that asks for a search. The hparams never have this value.
AUTO = "auto"


def set_flags(
    holder: absl_flags.FlagValues,
    rows: Mapping[str, Mapping[str, Any]],
    path: str,
    given: Collection[str],
) -> None:
    """Sets the flags in a file, except the `given` ones. `spec_from_flags` reads its hparams.

    `rows` are the program's flags in `flags.toml`.

    Raises:
      ValueError: the file has a flag that must be on the command line, or is damaged.
      absl_flags.Error: a flag is unknown, or its value is invalid.
    """
    settings = run_yaml.read(path)
    values = {name: value for name, value in settings.names.items() if name != "data_digest"}
    if values.get("hparams_set") == "":  # The run was started from Python, or converted.
        values["hparams_set"] = path
    for name in run_yaml.MESH:
        if settings.hparams.get(name) == AUTO:
            values[name] = AUTO
    for name in settings.flags:
        if name in ("config", "hparams") or name in values:
            raise ValueError(f"{name} cannot be under flags")
    for name, value in (values | settings.flags).items():
        if name not in rows:
            raise absl_flags.UnrecognizedFlagError(name, f"--{name}={value}")
        if value is None:
            continue
        effect = name not in given and rows[name].get("effect")
        if effect and value not in ("", "false") and not _is_inside(value, path, name):
            raise ValueError(
                f"{name}={value} {effect}, and somebody else may have written this file: give the"
                f" flag --{name} if that is what you want"
            )
        if isinstance(value, list) and rows[name].get("type") != "list":
            raise ValueError(f"{name} is a list, and must be one value")
        holder[name].parse(value)


def _is_inside(value: Any, path: str, name: str) -> bool:
    """Whether the path in a run's own file is in the run's directory."""
    run = Path(path).resolve()
    is_path = name in ("output_dir", "log_json") and isinstance(value, str)
    if not is_path or run.name != run_yaml.FILE:
        return False
    target = Path(os.path.realpath(value))
    return target == run.parent or (name == "log_json" and run.parent in target.parents)
