"""The phrases of a layout report."""

from collections.abc import Iterable, Iterator, Sequence

from t2tp.layout_report import report
from t2tp.mesh.layer_names import LayerGroup, common_name
from t2tp.mesh.layout_warnings import unnamed_dimensions
from t2tp.mesh.storage import axes_at_rest
from t2tp.report.units import size
from t2tp.step.attribution import CollectiveUse
from t2tp.step.memory import HEADROOM, RESERVED
from t2tp.suggestions import first_few

# Memory of common devices, in GB.
_DEVICE_GB = (8, 16, 24, 40, 80, 141, 192)

ESTIMATE = (
    "Variables, optimizer state and features are exact. Activations are an estimate: a tensor is in"
    " memory from the operation that computes it to the last operation that reads it. A step fits"
    f" if {HEADROOM:.0%} of the device stay free, for uncounted bytes such as kernels' workspace."
    " t2tp_plan computes the same bytes."
)

PUT_IN = (
    "Bytes of a collective are the bytes that each processor puts in. A collective in a loop over"
    " microbatches counts for each of them, and in a loop of unknown length once."
)


def fitting(data: report.ReportData) -> str:
    """Names the devices with enough memory."""
    total = f"{size(data.needed)} in all, with {size(RESERVED)} for driver and libraries"
    # A card has at least the GB in its name: an L4 of 24 GB has 24.1e9 bytes, an H100 85e9.
    room = [gb for gb in _DEVICE_GB if data.fits(gb * 1e9) == "yes"]
    if not room:
        return f"{total}: more than a device of {_DEVICE_GB[-1]} GB has"
    small = [gb for gb in _DEVICE_GB if gb < room[0]]
    return f"{total}: fits in {room[0]} GB" + (f", not in {small[-1]} GB" if small else "")


def pnums(numbers: Sequence[int]) -> str:
    """Formats processor numbers with ranges: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def slice_of(tensor: report.SlicedTensor) -> str:
    """Describes a slice: `slice [6, 6] float32, 144 B per device, 2 copies`."""
    text = f"{list(tensor.slice_shape)} {tensor.dtype.name}, {size(tensor.slice_bytes)} per device"
    if tensor.layout.size == 1:
        return text
    if tensor.copies * tensor.stages == tensor.layout.size:
        where = f"all {tensor.copies}" if tensor.stages == 1 else "each device of its stage"
        return f"full tensor {text}, on {where}"
    if tensor.copies == 1:
        return f"slice {text}"
    return f"slice {text}, {tensor.copies} copies of each"


def precision(line: report.VariableLine) -> str:
    """Describes the dtype in which a variable is read, if it is not the variable's dtype."""
    dtype = line.activation_dtype
    return f"read as {dtype.name}" if dtype != line.tensor.dtype else ""


def slots(line: report.VariableLine) -> str:
    """Describes a variable's optimizer slots, if there are any."""
    if not line.slots:
        return ""
    # A slot is named after its variable: `w/adam_m`.
    names = [slot.name.removeprefix(line.tensor.name).lstrip("/_") for slot in line.slots]
    dtypes = dict.fromkeys(slot.dtype.name for slot in line.slots)
    text = f"{', '.join(dtypes)}, {size(line.slot_bytes)} per device"
    return f"optimizer slots {', '.join(names)}: {text}"


def facts(activation: report.Activation) -> str:
    """Describes an activation's phase, operation and lifetime."""
    if activation.is_fed:
        return "fed"
    origin = f"{activation.phase}, by {activation.operation}"
    return (
        origin
        + (", stored for the backward pass" if activation.is_kept else "")
        + (", in a loop" if activation.in_loop else "")
    )


def collectives(uses: Iterable[report.Use], variable: str = "") -> list[str]:
    """Returns a sentence per collective of a tensor, of its operation, or of a variable."""
    return [
        f"{line.kind} over {' and '.join(line.axes)}"
        f"{_part_of(variable, line, use) if variable else ''}"
        f", {size(use.bytes)}{_over(use)}{_coalesced(use)}"
        for line, use in uses
    ]


def _part_of(variable: str, collective: report.CollectiveLine, use: CollectiveUse) -> str:
    """Describes a variable's role in a collective."""
    if use.gradient_of == variable:
        return " of its gradient"
    if not use.is_sum:
        return f" of it for the {collective.phase} pass"
    others = len(use.used) - 1
    more = f" and {others} more" if others else ""
    return f" of a {collective.phase} matmul with it{more}"


def _over(use: CollectiveUse) -> str:
    if not use.over:
        return ""
    return f", {'summed over' if use.is_sum else 'over'} {', '.join(use.over)}"


def _coalesced(use: CollectiveUse) -> str:
    return f", together with {use.together - 1} more" if use.together > 1 else ""


def purpose(group: LayerGroup[report.CollectiveLine]) -> str:
    """Describes the purpose of a group of collectives."""
    collective, use = group.first, group.first.uses[0]
    name = group.name.removesuffix(":0")
    # Outside of all operations, the step reduces or gathers what it returns.
    if not collective.operation:
        text = "an output of the program"
    elif len(collective.uses) > 1:
        text = _several(collective.uses)
    elif use.gradient_of:
        owner = common_name([each.uses[0].gradient_of or "" for each in group.members])
        text = f"backward: gradient of {owner}{_over(use)}"
    else:
        # A deferred sum is reduced later, not by the operation that computes its addends.
        inside = "" if use.is_sum else "inside "
        text = f"{collective.phase}: {inside}{name}{_over(use)}"
    if not collective.in_loop:
        return text
    return (
        f"{text}, in a loop of {collective.times}"
        if collective.times > 1
        else f"{text}, once an iteration"
    )


def _several(uses: Sequence[CollectiveUse]) -> str:
    """Describes a collective that serves several tensors."""
    gradients = sum(use.gradient_of is not None for use in uses)
    others = [use.tensor.removesuffix(":0") for use in uses if not use.gradient_of]
    text = [f"gradients of {gradients} variables"] if gradients else []
    text += others[:3]  # Hundreds of small tensors may share a collective.
    if len(others) > 3:
        text.append(f"{len(others) - 3} other tensors")
    over = ", ".join(dict.fromkeys(dim for use in uses for dim in use.over))
    return f"together: {', '.join(text)}" + (f"; summed over {over}" if over else "")


def processors(data: report.ReportData) -> str:
    """Describes the processors and their devices."""
    count, devices = data.layout.size, data.devices
    if not devices:
        return f"{count} processor{'s' if count > 1 else ''}, abstract: no devices"
    if count == 1:
        return f"1 processor, {devices[0]}"
    return f"{count} processors, {devices[0]} to {devices[-1]}"


def mesh_facts(data: report.ReportData) -> Iterator[str]:
    """Yields sentences about variables at rest, rules without an axis, and unnamed dimensions."""
    layout = data.layout
    if layout.storage.stage:
        trained = [line.tensor for line in data.variables if line.trainable]
        # Mostly vectors, which ZeRO does not shard unless a storage rule names their dimension.
        whole = [t.name for t in trained if not any(axes_at_rest(d.name) for d in t.shape.dims)]
        text = (
            f"ZeRO stage {layout.storage.stage}: {len(trained) - len(whole)} of {len(trained)}"
            " variables are sharded at rest"
        )
        yield f"{text}; whole: {first_few(whole, 4, ', ')}" if whole else text
    have = set(layout.mesh_shape.dimension_names)
    # This is no error: one layout may serve several meshes.
    idle = [f"{dim}:{axis}" for dim, axes in layout.rules for axis in axes if axis not in have]
    if idle:
        yield f"unused, the mesh lacks the axis: {', '.join(idle)}"
    # A forgotten or misspelt rule would otherwise show only as a step without a speedup.
    names = unnamed_dimensions(layout, [v.tensor.shape for v in data.variables])
    if layout.size > 1 and names:
        yield f"no rule names {', '.join(names)}: each processor uses them whole"
