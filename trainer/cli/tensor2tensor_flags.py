"""The flags of `t2t-trainer` and their counterparts in t2tp, for users of tensor2tensor."""

import functools

from t2tp.toml import read_packaged

_HPARAM = "hp_"
_STARTS = {"removed": "t2tp does not have this flag of tensor2tensor", "replaced": "Use"}


@functools.cache
def flag_table() -> dict[str, tuple[str, str]]:
    """Returns (kind, note) by flag; `tensor2tensor_flags.toml` explains them."""
    table = read_packaged(__package__, "tensor2tensor_flags.toml")
    return {name: (kind, " ".join(note)) for name, (kind, *note) in table.items()}


def advice(flag: str) -> str:
    """Returns advice on a flag that only tensor2tensor has; "" for any other flag.

    `flag` has no dashes; a boolean flag may begin with "no".
    """
    if flag.startswith(_HPARAM):
        return f"Hyperparameters are written --hparams={flag.removeprefix(_HPARAM)}=VALUE."
    table = flag_table()
    kind, note = table.get(flag) or table.get(flag.removeprefix("no")) or ("", "")
    return f"{_STARTS[kind]}: {note.replace('`', '')}." if kind in _STARTS else ""
