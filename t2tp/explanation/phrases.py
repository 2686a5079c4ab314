"""The words in which text and page say the same things."""

from __future__ import annotations

from collections.abc import Sequence

from t2tp.explanation.alike import Alike, common_name
from t2tp.explanation.contents import (
    Activation,
    Contents,
    CutTensor,
    Move,
    Share,
    VariableLine,
)
from t2tp.mesh.layout import Layout

# Memory of devices that there are, in GB.
_DEVICE_GB = (8, 16, 24, 40, 80, 141, 192)

ESTIMATE = (
    "Variables, optimizer slots, features and collectives are exact. Activations are those of the"
    " graph, each once, at the size of its slice; the largest may be one of those that are kept."
    " That is an estimate: TensorFlow and XLA fuse some away, free what is no longer needed, and"
    " need room of their own inside operations and collectives."
)

PUT_IN = (
    "Bytes of a collective are what each processor puts in. Those in a loop over microbatches count"
    " for each of them; those in a loop whose length is known only when it runs count once."
)


def size(num_bytes: int) -> str:
    """Bytes for people: `144 B`, `1.5 MiB`."""
    number = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def fits(num_bytes: int) -> str:
    """Says which devices have so much memory; a tenth is left to the runtime."""
    total = "in all, gradients of a training included"
    room = [gb for gb in _DEVICE_GB if num_bytes <= 0.9 * gb * 2**30]
    if not room:
        return f"{total}: more than a device of {_DEVICE_GB[-1]} GB has"
    small = [gb for gb in _DEVICE_GB if gb < room[0]]
    return f"{total}: fits in {room[0]} GB" + (f", not in {small[-1]} GB" if small else "")


def pnums(numbers: Sequence[int]) -> str:
    """Numbers of processors, runs of them shortened: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def slice_of(tensor: CutTensor) -> str:
    """What a device holds: `slice [6, 6] float32, 144 B a device, 2 copies`."""
    held = f"{list(tensor.slice_shape)} {tensor.dtype.name}, {size(tensor.slice_bytes)} a device"
    if tensor.layout.size == 1:
        return held
    if tensor.copies == tensor.layout.size:
        return f"whole {held}, on all {tensor.copies}"
    if tensor.copies == 1:
        return f"slice {held}"
    return f"slice {held}, {tensor.copies} copies of each"


def precision(line: VariableLine) -> str:
    """How a variable is saved and read, if not as it is stored."""
    said = [
        f"{verb} as {dtype.name}"
        for verb, dtype in (("saved", line.master_dtype), ("read", line.activation_dtype))
        if dtype != line.tensor.dtype
    ]
    return ", ".join(said)


def slots(line: VariableLine) -> str:
    """What the optimizer keeps for a variable; empty if nothing."""
    if not line.slots:
        return ""
    names = [slot.name.removeprefix(line.tensor.name).lstrip("/_") for slot in line.slots]
    dtypes = dict.fromkeys(slot.dtype.name for slot in line.slots)
    held = f"{', '.join(dtypes)}, {size(line.slot_bytes)} a device"
    return f"the optimizer keeps {', '.join(names)}: {held}"


def facts(activation: Activation) -> str:
    """When an activation is made, and by what."""
    if activation.is_fed:
        return "fed"
    made = f"{activation.phase.value}, by {activation.operation}"
    return (
        made
        + (", kept for the backward pass" if activation.is_kept else "")
        + (", in a loop" if activation.in_loop else "")
    )


def axes(move: Move) -> str:
    """The mesh axes of a collective: `data and model`."""
    return " and ".join(move.axes)


def moves_of_variable(moves: Sequence[Move], variable: str) -> list[str]:
    """What collectives have to do with a variable, a sentence each."""
    return [
        f"{move.kind} over {axes(move)} of {_part_of(variable, move, share)},"
        f" {size(share.bytes)}{_over(share)}{_company(share)}"
        for move in moves
        for share in move.shares
        if variable == share.gradient_of or variable in share.used
    ]


def _part_of(variable: str, move: Move, share: Share) -> str:
    """What a variable has to do with a sum."""
    if share.gradient_of == variable:
        return "its gradient"
    others = len(share.used) - 1
    return f"a {move.phase.value} product with it" + (f" and {others} more" if others else "")


def moves_of_tensor(moves: Sequence[Move], name: str) -> list[str]:
    """The collectives that complete a tensor, or are made inside the operation of that name, a
    sentence each."""
    return [
        f"{move.kind} over {axes(move)}, {size(share.bytes)}{_over(share)}{_company(share)}"
        for move in moves
        for share in move.shares
        if share.tensor.removesuffix(":0") == name
    ]


def _over(share: Share) -> str:
    if not share.over:
        return ""
    return f", {'summed over' if share.is_sum else 'over'} {', '.join(share.over)}"


def _company(share: Share) -> str:
    return f", together with {share.together - 1} more" if share.together > 1 else ""


def purpose(group: Alike[Move]) -> str:
    """What collectives are for."""
    move, share = group.first, group.first.shares[0]
    name = group.name.removesuffix(":0")
    if not move.operation:
        said = "an output of the program"
    elif len(move.shares) > 1:
        said = _several(move.shares)
    elif share.gradient_of:
        owner = common_name([each.shares[0].gradient_of or "" for each in group.members])
        said = f"backward: gradient of {owner}{_over(share)}"
    else:
        inside = "" if share.is_sum else "inside "
        said = f"{move.phase.value}: {inside}{name}{_over(share)}"
    if not move.in_loop:
        return said
    return f"{said}, in a loop of {move.times}" if move.times > 1 else f"{said}, once an iteration"


def _several(shares: Sequence[Share]) -> str:
    """What a collective is for that serves several tensors."""
    gradients = sum(share.gradient_of is not None for share in shares)
    others = [share.tensor.removesuffix(":0") for share in shares if not share.gradient_of]
    said = [f"gradients of {gradients} variables"] if gradients else []
    said += others[:3]
    if len(others) > 3:
        said.append(f"{len(others) - 3} other tensors")
    over = ", ".join(dict.fromkeys(dim for share in shares for dim in share.over))
    return f"together: {', '.join(said)}" + (f"; summed over {over}" if over else "")


def title(layout: Layout) -> str:
    """Mesh and rules: `mesh data:2;model:2, layout batch:data;d_ff:model`."""
    mesh = ";".join(f"{axis.name}:{axis.size}" for axis in layout.mesh_shape.dims)
    rules = ";".join(f"{dim}:{axis}" for dim, axis in layout.rules)
    return f"mesh {mesh or 'of one device'}, layout {rules or '(none)'}"


def processors(contents: Contents) -> str:
    """How many processors there are, and what they are bound to."""
    count, devices = contents.layout.size, contents.devices
    if not devices:
        return f"{count} processor{'s' if count > 1 else ''}, on paper: bound to no devices"
    if count == 1:
        return f"1 processor, {devices[0]}"
    return f"{count} processors, {devices[0]} to {devices[-1]}"


def splitting(dims: Sequence[str]) -> str:
    """What a mesh axis does."""
    return f"splits {', '.join(dims)}" if dims else "splits nothing"


def idle_rules(layout: Layout) -> list[str]:
    """The rules for axes that the mesh does not have, in a sentence; none if there are none."""
    have = set(layout.mesh_shape.dimension_names)
    idle = [f"{dim}:{axis}" for dim, axis in layout.rules if axis not in have]
    return [f"idle, for want of the mesh axis: {', '.join(idle)}"] if idle else []
