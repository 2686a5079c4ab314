"""The frozen base of adapters (LoRA): the checkpoint with the weights that are not trained.

Frozen weights do not change, so a checkpoint of adapters does not store them. Its metadata have the
base's path, and the id of the base's save, because another checkpoint may have the path later:

    {"path": "/runs/llama/checkpoints/step-00000000", "save_id": "5f3e...", "names": {}}
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t2tp.checkpoint.errors import UnusableCheckpointError
from t2tp.checkpoint.reading import BASE, Checkpoint
from t2tp.object_store.mirror import address_of, local_path, pulled
from t2tp.suggestions import first_few


class BaseError(ValueError):
    """The base of adapters was not found, or does not have the frozen weights."""


def reference(base: Checkpoint, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the reference to a base, as plain JSON for a checkpoint's metadata.

    `names` maps frozen variables to their names in the base.
    """
    renamed = {ours: theirs for ours, theirs in names.items() if ours != theirs}
    return {"path": address_of(base.path.absolute()), "save_id": base.save_id, "names": renamed}


def open_base(saved: Checkpoint, elsewhere: Path | None = None) -> Checkpoint | None:
    """Opens the base of a checkpoint; None if the checkpoint stores all its variables itself.

    The path `elsewhere` is tried first. Somebody else may have written the recorded path, which may
    be an address in a store: it is tried last. Raises BaseError if the base was not found.
    """
    record = saved.metadata.get(BASE)
    if record is None:
        return None
    recorded = Path(local_path(record["path"], is_lazy=True))
    # The two runs may have been moved together with their parent directory.
    sibling = Path(*saved.path.absolute().parts[:-3], *recorded.parts[-3:])
    for path in (elsewhere, sibling, recorded):
        try:
            base = None if path is None else Checkpoint(pulled(path))
        except UnusableCheckpointError:
            continue
        if base is not None and base.save_id == record["save_id"]:
            return base
    there = "is another checkpoint now" if os.path.lexists(recorded) else "is not there"
    raise BaseError(
        f"the adapters in {saved.path} belong to the weights in {recorded}, which {there}: move"
        " that checkpoint back, or, to train, say with --warm_start_from where it is"
    )


def base_with(
    source: Checkpoint, names: Mapping[str, str], elsewhere: Path | None = None
) -> tuple[Checkpoint, dict[str, str]]:
    """Finds the checkpoint that stores the frozen weights, and the weights' names in it.

    `source` is the checkpoint with the frozen weights, or a checkpoint of their adapters; `names`
    maps frozen variables to their names in `source`.

    Raises:
      BaseError: the base was not found, or a weight that is frozen here was trained in `source`.
    """
    base = open_base(source, elsewhere)
    if base is None:
        return source, {ours: source.stored_name(theirs) for ours, theirs in names.items()}
    trained = sorted(set(names.values()) & set(source.shapes()))
    if trained:
        raise BaseError(
            f"{trained[0]} is trained in {source.path}, and here it would be frozen: name it in"
            " lora_also_trained, or make one model of both with t2tp_convert --merge_lora"
        )
    inner = source.metadata[BASE]["names"]
    return base, {ours: inner.get(theirs, theirs) for ours, theirs in names.items()}


def check_has(base: Checkpoint, shapes: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
    """Raises BaseError unless a base has the frozen weights of a program.

    `shapes` has (name in the program, name in the base, shape) of each weight.
    """
    saved = base.shapes()
    wrong = [
        f"{name} is not there"
        if theirs not in saved
        else f"{name} is {saved[theirs]} there and {shape} here"
        for name, theirs, shape in shapes
        if saved.get(theirs) != shape
    ]
    if wrong:
        raise BaseError(
            f"the checkpoint {base.path} does not have the frozen weights: {first_few(wrong)}"
        )
