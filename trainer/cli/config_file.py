"""Turns the file of `--config` into flags; the command line overrides them."""

from typing import Any

from t2tp.trainer import run_yaml

# Value of --mesh_shape and --layout that asks for a search. The hparams never have this value.
AUTO = "auto"


def flags_of(path: str) -> list[str]:
    """Returns the flags in a file. `spec_from_flags` reads the file's hparams.

    Omits `t2t_usr_dir`, because a file that somebody else wrote must not execute code.
    """
    settings = run_yaml.read(path)
    names = {name: value for name, value in settings.names.items() if name != "data_digest"}
    if names.get("hparams_set") == "":  # The run was started from Python, or converted.
        names["hparams_set"] = path
    for name in run_yaml.MESH:
        if settings.hparams.get(name) == AUTO:
            names[name] = AUTO
    for name in settings.flags:
        if name in ("config", "hparams", "help", "version") or name in names:
            raise ValueError(f"{path}: {name} cannot be under flags")
    given = {name: value for name, value in settings.flags.items() if name != "t2t_usr_dir"}
    return [
        f"--{name}={_text(value)}" for name, value in (names | given).items() if value is not None
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
