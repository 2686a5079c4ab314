"""Cluster files: the speed and size of a cluster's devices, links and software, in TOML.

Every number is in SI units: bytes, seconds, bytes/s, FLOP/s. `docs/planning.md` lists the keys.
Each field of the classes below is a key, with its type and its range. Errors name the wrong key.
"""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from t2tp.choices import PRECISIONS
from t2tp.hparam_limits import Limits
from t2tp.hparam_types import declared_type
from t2tp.planner.curves import CollectiveCurve, Curve, Point, share_at
from t2tp.step.kernels import WITHOUT_KERNEL, Kernels, key, own_kernels
from t2tp.step.memory import HEADROOM, RESERVED, usable
from t2tp.step.work import ELEMENTWISE, PRODUCT
from t2tp.suggestions import check_known, nearest
from t2tp.typed_files import MAX_SLOW_BYTES, parse_toml, read_text

T = TypeVar("T")

# Values of `Link.cards`.
CARDS = ("rank", "host")
# A number of bytes, bytes/s or FLOP/s below this is in the wrong unit.
_SI = 1e6

# The name of the cluster that t2tp_calibrate measures: a file in the working directory.
THIS_MACHINE = "this_machine"


class ClusterFileError(ValueError):
    """A cluster file that cannot be read."""


def _share(default: float) -> Any:
    return key(default, above=0.0, max=1.0)


def _fraction(default: float) -> Any:
    return key(default, min=0.0, max=1.0)


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
      peak: FLOP/s of large matmuls by activation dtype.
      memory: bytes of memory.
      bandwidth: bytes/s of the memory.
      launch: seconds that the device idles between two operations.
      units: number of units of the chip that compute tiles of a matmul (SMs); 1: no tiles.
      reserved: bytes that the driver and libraries occupy.
      cores: cores of a host, if its devices share cores and memory, as virtual CPU devices do; 0:
        each device is a separate chip.
    """

    name: str
    peak: Mapping[str, float] = key(min=_SI)
    memory: float = key(min=_SI)
    bandwidth: float = key(min=_SI)
    launch: float = _fraction(0.0)
    units: int = key(1, min=1)
    reserved: float = key(RESERVED, min=0.0)
    cores: int = key(0, min=0)


@dataclass(frozen=True)
class Link:
    """The links of a level: inside a host, between hosts, between racks.

    Attributes:
      bandwidth: bytes/s of one link in each direction.
      latency: seconds per message.
      devices: number of devices that the level connects; 0: all.
      shared_by: number of devices that share a link.
      shared_by_all: whether all devices of the level share the bandwidth, as the devices of a host
        share its memory.
      of_process: whether the level connects all devices of a process, however many there are.
      cards: the links that a collective uses if several of its members are in one host: the links
        of all these members (`host`) or the link of one of them (`rank`). At the level between
        racks, `cards` chooses between the links of the members in one rack.
    """

    name: str
    bandwidth: float = key(min=_SI)
    latency: float = key(min=0.0, max=1.0)
    devices: int = key(0, min=0)
    shared_by: int = key(1, min=1)
    shared_by_all: bool = False
    of_process: bool = False
    cards: str = key("host", choices=CARDS)


@dataclass(frozen=True)
class AttentionKernel:
    """The speed of an attention kernel that saves no scores, on a kind of device.

    The speed of each pass is a list of `[head size, share, ramp]`. Long sequences reach `share` of
    the peak, and sequences of `ramp` keys reach half of `share`. The FLOPs do not include scores
    that a causal mask hides.

    Attributes:
      forward, backward: speed of the passes without a mask.
      causal_forward, causal_backward: speed of the passes with a causal mask.
      spread: relative uncertainty.
      source: source of the numbers.
    """

    forward: tuple[Point, ...]
    backward: tuple[Point, ...]
    causal_forward: tuple[Point, ...]
    causal_backward: tuple[Point, ...]
    spread: float = _fraction(0.15)
    source: str = ""

    def share(self, head_size: float, keys: float, *, is_forward: bool, causal: bool) -> float:
        """Returns the share of the peak for queries that attend to `keys` keys."""
        name = f"{'causal_' if causal else ''}{'forward' if is_forward else 'backward'}"
        return share_at(getattr(self, name), head_size, keys)


@dataclass(frozen=True)
class SoftwareStack(Kernels):
    """The share of a device's speed that a software stack reaches, and its kernels.

    Attributes:
      like: an earlier stack of the file, from which missing keys are taken.
      product: share of the peak that large matmuls reach.
      product_inner: length of the summed dimension at which a matmul reaches half of `product`.
      own: whether it is t2tp, whose program is planned as it is. `fuses` and `attention` then
        describe a step that XLA compiles, on one device.
      batched: share of the peak that batched matmuls reach (unfused attention).
      memory: share of the bandwidth that memory-bound operations reach.
      weights_where_used: whether a pipeline stage has only the weights that it uses. In t2tp, this
        is false: all stages have the embeddings.
      unsharded_layers: number of layers whose weights ZeRO 3 holds gathered at the same time, in
        use or prefetched. If this number is above 0, the unreduced gradients of one layer are in
        memory, too.
      fragmentation: bytes that the allocator cannot use because free memory is in small pieces, as
        a share of the bytes that each step allocates.
      cached_layers: number of layers whose weights, in 16 bits, must fit into the free memory in
        ZeRO 3. If they do not fit, the allocator retries.
      link: share of a link's bandwidth that collectives reach.
      start: seconds of a collective before its first message.
      overlap: share of the collectives of gradients and weights that overlaps with computation.
      overlap_activations: share of the backward pass's collectives of activations that overlaps
        with the gradients of weights.
      overlap_forward: share of the forward pass's collectives of activations that overlaps with
        matmuls, as in Transformer Engine.
      curves: measured seconds of operations by size. They replace the shares above.
      collectives: measured seconds of collectives by size.
      spread: relative uncertainty of the constants.
      spread_links: relative uncertainty of the constants of links.
      residual: relative error of the planner itself. It is chosen so that the plan's interval
        includes nine of ten step times that others have published. No other constant was fitted to
        these times.
      source: source of the constants.
    """

    name: str = ""
    like: str = ""
    product: float = _share(0.75)
    product_inner: float = key(0.0, min=0.0)
    attention: str = "unfused"
    fuses: bool = True
    own: bool = False
    batched: float = _share(0.5)
    memory: float = _share(0.85)
    weights_where_used: bool = False
    unsharded_layers: int = key(0, min=0)
    fragmentation: float = _fraction(0.0)
    cached_layers: float = key(0.0, min=0.0)
    link: float = _share(0.8)
    start: float = _fraction(0.0)
    overlap: float = _fraction(0.0)
    overlap_activations: float = _fraction(0.0)
    overlap_forward: float = _fraction(0.0)
    curves: tuple[Curve, ...] = ()
    collectives: tuple[CollectiveCurve, ...] = ()
    spread: float = _fraction(0.1)
    spread_links: float = _fraction(0.2)
    residual: float = _fraction(0.05)
    source: str = ""


@dataclass(frozen=True)
class ClusterFile:
    """The contents of a cluster file.

    Attributes:
      device: the kind of the cluster's devices.
      host_devices: devices of a host.
      links: levels of links, the nearest first.
      stacks: software stacks by name.
      kernels: kernels of attention by name.
      stack: name of the stack in use. Default: the first one.
      price_per_hour: price of one device; 0: unknown.
      max_devices: number of devices of the cluster; 0: any number.
      processes: number of processes that share the devices of a host, if `device.cores` is above 0.
      headroom: share of the memory that a plan must leave free, for what the planner does not
        model.
      source: source of the numbers.
    """

    name: str
    device: Device
    links: tuple[Link, ...]
    stacks: Mapping[str, SoftwareStack]
    kernels: Mapping[str, AttentionKernel]
    host_devices: int = key(min=1)
    stack: str = ""
    price_per_hour: float = key(0.0, min=0.0)
    max_devices: int = key(0, min=0)
    processes: int = key(1, min=1)
    headroom: float = key(HEADROOM, min=0.0, below=1.0)
    source: str = ""

    @property
    def software(self) -> SoftwareStack:
        """The stack in use."""
        return self.stacks[self.stack]

    @classmethod
    def load(cls, path: str, stack: str = "") -> ClusterFile:
        """Reads a file by its path, or a file that comes with t2tp by its name.

        Args:
          path: path of a file ending in `.toml`, or a name such as `a100` or `this_machine`.
          stack: name of the stack to use. Default: the stack that the file selects.

        Raises:
          ClusterFileError: there is no such file or stack, or the file is invalid.
        """
        cluster = cls.from_toml(_read(path), path)
        return cluster.with_stack(stack) if stack else cluster

    @classmethod
    def from_toml(cls, text: str, name: str) -> ClusterFile:
        """Parses the text of a cluster file; `name` is the name of the file, for errors.

        Raises:
          ClusterFileError: a key is unknown or missing, or a value is out of range.
        """
        where = f"cluster file {name}"
        try:
            table = parse_toml(text, where, dict[str, Any])
        except ValueError as error:
            raise ClusterFileError(str(error)) from error
        device = _parsed(Device, table.pop("device", None), f"{where}: device")
        links = _list_of(Link, table.pop("links", None), f"{where}: links")
        stacks = table.pop("stacks", None)
        if not links or not stacks or not isinstance(stacks, dict):
            raise ClusterFileError(f"{where}: it needs at least one [[links]] and [stacks.NAME]")
        whole: dict[str, Any] = {}
        for stack, values in stacks.items():
            parent = values.get("like") if isinstance(values, dict) else None
            if parent:
                above = f"{where}: stacks.{stack}.like is"
                _check_known([str(parent)], whole, above, "stacks before it")
            whole[stack] = {**whole[parent], **values} if parent else values
        parts = {
            "device": device,
            "links": links,
            "stacks": {stack: _stack(stack, each, where) for stack, each in whole.items()},
            "kernels": {
                name: _parsed(AttentionKernel, each, f"{where}: kernels.{name}")
                for name, each in table.pop("kernels", {}).items()
            },
        }
        table.setdefault("stack", next(iter(stacks)))
        cluster = _parsed(cls, table, where, parts)
        cluster._check(where)
        return cluster

    def _check(self, where: str) -> None:
        """Checks the keys that depend on each other."""
        _check_known([self.stack], self.stacks, f"{where}: stack is", "stacks")
        kernels = (*self.kernels, *WITHOUT_KERNEL)
        for name, stack in self.stacks.items():
            at = f"{where}: stacks.{name}.attention is"
            _check_known([stack.attention], kernels, at, "kernels")
        if not self.device.peak:
            raise ClusterFileError(f"{where}: device.peak is empty: give FLOP/s by dtype")
        if self.device.reserved >= self.device.memory:
            raise ClusterFileError(
                f"{where}: device.reserved is {self.device.reserved:g}, and must be below"
                f" device.memory, {self.device.memory:g}"
            )
        reach = [0 if link.of_process else link.devices for link in self.links]
        for i, (near, far) in enumerate(itertools.pairwise(reach)):
            if not self.links[i].of_process and (near == 0 or 0 < far <= near):
                raise ClusterFileError(
                    f"{where}: links[{i + 1}].devices must be above links[{i}].devices, {near}:"
                    " links go from the nearest level to the farthest, and only the last connects"
                    " all devices (0)"
                )
        if reach[-1] > 0 and not 0 < self.max_devices <= reach[-1]:
            raise ClusterFileError(
                f"{where}: links[{len(reach) - 1}].devices is {reach[-1]}, and the farthest level"
                " must connect all devices: leave it out, or set max_devices to at most that"
            )

    def with_stack(self, name: str) -> ClusterFile:
        """Returns the cluster with another of its stacks in use.

        Raises:
          ClusterFileError: the cluster has no such stack.
        """
        _check_known([name], self.stacks, f"cluster {self.name} has no stack", "stacks")
        return replace(self, stack=name)

    def on_mesh(self, devices: int) -> ClusterFile:
        """Returns the cluster with the kernels that t2tp's own stack has on a number of devices."""
        if not self.software.own or devices == 1:
            return self
        kernels = own_kernels(devices, on_cpu=False)
        stack = replace(self.software, attention=kernels.attention, fuses=kernels.fuses)
        return replace(self, stacks={**self.stacks, self.stack: stack})

    def sharing(self, devices: int) -> int:
        """Returns how many devices of a mesh share a host's memory and cores; 1 if none do."""
        return min(devices, self.host_devices) if self.device.cores else 1

    def usable_memory(self, devices: int) -> float:
        """Returns the bytes of a device that a step on a mesh of this size may use."""
        return usable(self.device.memory / self.sharing(devices), self.headroom)

    def peak(self, dtype: str) -> float:
        """Returns the FLOP/s of one device for a dtype.

        If the file has no peak for the dtype, returns the peak for float32, or else the highest.
        """
        by_dtype = self.device.peak
        return by_dtype.get(dtype, by_dtype.get("float32", max(by_dtype.values())))


def shipped() -> list[str]:
    """Returns the names of the cluster files that come with t2tp."""
    directory = importlib.resources.files("t2tp.planner") / "clusters"
    return sorted(file.name.removesuffix(".toml") for file in directory.iterdir())


def _read(path: str) -> str:
    if path == THIS_MACHINE:
        path = f"{THIS_MACHINE}.toml"
        if not Path(path).exists():
            raise ClusterFileError(
                f"--cluster={THIS_MACHINE}: there is no {path} here;"
                f" t2tp_calibrate --output={path} measures this machine"
            )
    if not path.endswith(".toml"):
        if path not in shipped():
            known = nearest(path, shipped(), "clusters")
            raise ClusterFileError(
                f"--cluster={path}: a cluster file of your own ends in .toml; {known}"
            )
        directory = importlib.resources.files("t2tp.planner") / "clusters"
        return (directory / f"{path}.toml").read_text()
    try:
        return read_text(Path(path).expanduser(), MAX_SLOW_BYTES)
    except (OSError, ValueError) as error:
        raise ClusterFileError(f"cluster file {path} cannot be read: {error}") from error


def _parsed(kind: type[T], values: Any, where: str, parts: Mapping[str, Any] | None = None) -> T:
    """Makes a dataclass, whose fields are keys, from a table; `parts` are fields parsed already."""
    if not isinstance(values, dict):
        raise ClusterFileError(f"{where}: a table of keys is missing")
    parts = parts or {}
    known = {f.name: f for f in fields(kind) if f.name not in parts}  # type: ignore[arg-type]
    _check_known(values, known, f"{where} has an unknown key", "keys")
    for name, declared in known.items():
        if declared.default is MISSING and name not in values:
            raise ClusterFileError(f"{where}: the key {name!r} is missing")
    checked = {
        name: _checked(known[name], each, f"{where}.{name}") for name, each in values.items()
    }
    return kind(**checked, **parts)


def _list_of(kind: type[T], values: Any, where: str) -> tuple[T, ...]:
    if values is not None and not isinstance(values, list):
        raise ClusterFileError(f"{where} is a list of tables")
    return tuple(_parsed(kind, each, f"{where}[{i}]") for i, each in enumerate(values or ()))


def _stack(name: str, values: Any, where: str) -> SoftwareStack:
    """Makes a stack, with its curves."""
    where = f"{where}: stacks.{name}"
    table = values if isinstance(values, dict) else {}
    parts: dict[str, Any] = {"name": name}
    for part, table_of in (("curves", Curve), ("collectives", CollectiveCurve)):
        parts[part] = _list_of(table_of, table.pop(part, None), f"{where}.{part}")
    stack = _parsed(SoftwareStack, values, where, parts)
    measured = {curve.kind for curve in stack.curves}
    for kind in (PRODUCT, ELEMENTWISE):  # Kinds without a curve use the curves of these two.
        if measured and kind not in measured:
            raise ClusterFileError(f"{where}.curves: a curve of kind {kind!r} is missing")
    for i, curve in enumerate(stack.collectives):
        if curve.devices % curve.group or curve.devices % curve.processes:
            raise ClusterFileError(
                f"{where}.collectives[{i}]: group={curve.group} and processes={curve.processes}"
                f" must divide devices={curve.devices}"
            )
    return stack


def _check_known(names: Iterable[str], known: Iterable[str], where: str, what: str) -> None:
    for name in names:
        check_known(name, known, what, f"{where} {name!r}", ClusterFileError)


def _checked(declared: Any, value: Any, where: str) -> Any:
    """Returns the value of a key if it is of the declared type and within its limits."""
    kind, limits = declared.type, declared.metadata.get("limits", Limits())
    if kind.startswith("Mapping"):
        if not isinstance(value, dict):
            raise ClusterFileError(f"{where}: a table of keys is missing")
        _check_known(value, PRECISIONS, f"{where} has an unknown key", "dtypes")
        return {name: _number(each, limits, f"{where}.{name}") for name, each in value.items()}
    if kind.startswith("tuple"):
        return _points(value, where)
    return _number(value, limits, where, kind)


def _number(value: Any, limits: Limits, where: str, kind: str = "float") -> Any:
    try:
        value = declared_type(where, kind).check(where, value)
        limits.check(where, value)
    except (TypeError, ValueError) as error:
        raise ClusterFileError(str(error)) from error
    return value


def _points(value: Any, where: str) -> tuple[Point, ...]:
    """Checks a list of points of three numbers each, whose first numbers must grow.

    The numbers are `[size, seconds, spread]`, or those of an `AttentionKernel`.
    """
    is_list = isinstance(value, list) and all(isinstance(p, list) and len(p) == 3 for p in value)
    if not is_list or not value:
        raise ClusterFileError(f"{where} is a list of [size, seconds, spread]")
    limits = (Limits(above=0.0), Limits(above=0.0), Limits(min=0.0))
    points = [
        tuple(_number(n, each, f"{where}[{i}]") for n, each in zip(point, limits, strict=True))
        for i, point in enumerate(value)
    ]
    if any(low[0] >= high[0] for low, high in itertools.pairwise(points)):
        raise ClusterFileError(f"{where}: sizes must grow from point to point")
    return tuple(points)  # type: ignore[arg-type]
