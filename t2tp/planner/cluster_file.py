"""Cluster files: what the devices, links and software of a cluster can do, as TOML.

Every number is in SI units: bytes, seconds, bytes/s, FLOP/s. `docs/planning.md` lists the keys.
"""

from __future__ import annotations

import importlib.resources
import itertools
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from t2tp.choices import PRECISIONS
from t2tp.planner.curves import CollectiveCurve, Curve, Point
from t2tp.planner.retention import Retention
from t2tp.suggestions import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

# How attention is computed: by one kernel that keeps no scores; product by product; or as t2tp's
# own operation does it.
ATTENTION = ("fused", "unfused", "engine")
# The cards that a collective uses of a host where its group has several members.
CARDS = ("rank", "host")


# The cluster that t2tp_calibrate has measured, in a file of this name in the working directory.
THIS_MACHINE = "this_machine"


class ClusterFileError(ValueError):
    """A cluster file that cannot be read."""


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
      name: as its maker calls it.
      peak: FLOP/s of large matmuls by activation dtype.
      memory: bytes.
      bandwidth: of the memory, bytes/s.
      launch: seconds that the device idles between two operations.
      units: processors of the chip that work on tiles of a matmul (SMs); 1: no quantization.
      reserved: bytes that driver and libraries take.
      cores: of a host that its devices share, with its memory, as virtual CPU devices do; 0: each
        device is a chip of its own.
    """

    name: str
    peak: Mapping[str, float]
    memory: float
    bandwidth: float
    launch: float = 0.0
    units: int = 1
    reserved: float = 0.0
    cores: int = 0


@dataclass(frozen=True)
class Link:
    """The links of a level: inside a host, between hosts, between racks.

    Attributes:
      name: of the level.
      bandwidth: bytes/s each way of one link.
      latency: seconds per message.
      devices: how many devices the level connects; 0: all.
      shared_by: how many devices share a link.
      shared_by_all: whether all devices that the level connects share the bandwidth, as those of
        one host's memory do.
      of_process: whether it connects the devices of a process, however many these are.
      cards: what a group with several members below the level uses: the links of each (`host`), or
        of one of them (`rank`).
    """

    name: str
    bandwidth: float
    latency: float
    devices: int = 0
    shared_by: int = 1
    shared_by_all: bool = False
    of_process: bool = False
    cards: str = "host"


@dataclass(frozen=True)
class SoftwareStack:
    """What a software stack gets out of a device.

    Attributes:
      name: of the stack.
      product: share of the peak that large matmuls reach.
      product_inner: summed elements at which a matmul reaches half of that, on top of its tiles.
      batched: share of the peak of batched matmuls (unfused attention).
      memory: share of the bandwidth that memory-bound operations reach.
      attention: `fused`, `unfused` or `engine`; see `Retention`.
      attention_forward: share of the peak of fused attention.
      attention_backward: the same for its gradient.
      causal_skips: whether fused attention skips what a causal mask hides.
      fuses: whether chains of element-wise operations are one kernel.
      keeps_masks, keeps_wide_logits, keeps_buffers, gathers_again: as `Retention` has them.
      link: share of a link's bandwidth that collectives reach.
      overlap: share of the collectives of gradients and weights that hides behind computation.
      overlap_activations: share of the backward pass's collectives of activations that hides
        behind the gradients of weights.
      repeats_all: whether recomputation runs whole layers again, also what no gradient needs.
      curves: measured seconds of operations by size, which take the place of the shares above.
      collectives: likewise of collectives.
      spread: relative uncertainty of the constants.
      spread_links: the same for links.
      source: where the constants come from.
    """

    name: str = ""
    product: float = 0.75
    product_inner: float = 0.0
    batched: float = 0.5
    memory: float = 0.85
    attention: str = "fused"
    attention_forward: float = 0.5
    attention_backward: float = 0.45
    causal_skips: bool = True
    fuses: bool = True
    keeps_masks: bool = False
    keeps_wide_logits: bool = False
    keeps_buffers: bool = False
    gathers_again: bool = False
    link: float = 0.8
    overlap: float = 0.0
    overlap_activations: float = 0.0
    repeats_all: bool = False
    curves: tuple[Curve, ...] = ()
    collectives: tuple[CollectiveCurve, ...] = ()
    spread: float = 0.1
    spread_links: float = 0.2
    source: str = ""

    @property
    def retention(self) -> Retention:
        """What the stack's kernels keep for the backward pass."""
        return Retention(
            self.fuses,
            self.attention,
            self.keeps_masks,
            self.keeps_wide_logits,
            self.gathers_again,
            self.keeps_buffers,
        )


@dataclass(frozen=True)
class ClusterFile:
    """The contents of a cluster file.

    Attributes:
      name: of the cluster.
      device: all devices are of one kind.
      host_devices: devices of a host.
      links: from the nearest level to the farthest.
      stacks: by name.
      stack: name of the stack that is used.
      price_per_hour: of one device; 0: unknown.
      max_devices: of the cluster; 0: any number.
      processes: on a host whose cores its devices share: that these are in.
      source: where the numbers come from.
    """

    name: str
    device: Device
    host_devices: int
    links: tuple[Link, ...]
    stacks: Mapping[str, SoftwareStack]
    stack: str
    price_per_hour: float = 0.0
    max_devices: int = 0
    processes: int = 1
    source: str = ""

    @property
    def software(self) -> SoftwareStack:
        """The stack that is used."""
        return self.stacks[self.stack]

    @classmethod
    def load(cls, path: str, stack: str = "") -> ClusterFile:
        """Reads a file, or one of those that t2tp has, by name.

        Args:
          path: of a file ending in `.toml`, or a name such as `a100` or `this_machine`.
          stack: name of the stack; by default the file's.

        Raises:
          ClusterFileError: there is no such file or stack, or it is invalid.
        """
        text = _read(path)
        try:
            cluster = cls.from_toml(text, path)
        except tomllib.TOMLDecodeError as error:
            raise ClusterFileError(f"cluster file {path}: not TOML: {error}") from error
        return cluster.with_stack(stack) if stack else cluster

    @classmethod
    def from_toml(cls, text: str, name: str) -> ClusterFile:
        """Parses the text of a cluster file; `name` is for errors.

        Raises:
          ClusterFileError: a key is unknown or missing, or a value is of another kind.
        """
        table = tomllib.loads(text)
        for part in ("device", "links", "stacks"):
            if not table.get(part):
                raise ClusterFileError(f"cluster file {name}: it has no [{part}]")
        peak = table["device"].get("peak")
        if not isinstance(peak, dict):
            raise ClusterFileError(f"cluster file {name}: device.peak gives FLOP/s by dtype")
        for dtype in peak:
            if dtype not in PRECISIONS:
                known = nearest(dtype, PRECISIONS, "dtypes")
                raise ClusterFileError(f"cluster file {name}: device.peak.{dtype}: {known}")
        device = _made(Device, table.pop("device"), f"cluster file {name}: device")
        links = tuple(
            _made(Link, link, f"cluster file {name}: links[{i}]")
            for i, link in enumerate(table.pop("links"))
        )
        stacks = {
            key: _stack(key, values, f"cluster file {name}: stacks.{key}")
            for key, values in table.pop("stacks").items()
        }
        table.setdefault("stack", next(iter(stacks)))
        made = {"device": device, "links": links, "stacks": stacks}
        cluster = _made(cls, table, f"cluster file {name}", made)
        for stack in stacks.values():
            _check_choice(f"cluster file {name}: stacks.{stack.name}.attention", stack, ATTENTION)
        for link in links:
            if link.cards not in CARDS:
                known = nearest(link.cards, CARDS, "ways")
                raise ClusterFileError(f"cluster file {name}: links.cards={link.cards!r}: {known}")
        return cluster.with_stack(cluster.stack)

    def with_stack(self, name: str) -> ClusterFile:
        """Returns the cluster with another of its stacks.

        Raises:
          ClusterFileError: it has no such stack.
        """
        if name not in self.stacks:
            known = nearest(name, self.stacks, "stacks")
            raise ClusterFileError(f"cluster {self.name} has no stack {name!r}: {known}")
        return replace(self, stack=name)

    def with_processes(self, processes: int) -> ClusterFile:
        """Returns the cluster with the devices of a host in so many processes."""
        return replace(self, processes=processes)

    def sharing(self, devices: int) -> int:
        """Returns how many of a mesh's devices share the memory and the cores of a host; or 1."""
        return min(devices, self.host_devices) if self.device.cores else 1

    def peak(self, dtype: str) -> float:
        """Returns the FLOP/s of one device for a dtype, of float32 if the file does not say."""
        by_dtype = self.device.peak
        return by_dtype.get(dtype, by_dtype.get("float32", max(by_dtype.values())))


def shipped() -> list[str]:
    """Returns the names of the clusters that t2tp has files of."""
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
            raise ClusterFileError(f"--cluster={path}: {known}, or a file that ends in .toml")
        directory = importlib.resources.files("t2tp.planner") / "clusters"
        return (directory / f"{path}.toml").read_text()
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterFileError(f"cluster file {path} cannot be read: {error}") from error


def _made(kind: type[T], values: Any, where: str, made: Mapping[str, Any] | None = None) -> T:
    """Makes a dataclass of a table's values; `made` are fields that are made already."""
    if not isinstance(values, dict):
        raise ClusterFileError(f"{where} is a table of keys")
    known = {f.name: f for f in fields(kind) if f.name not in (made or {})}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ClusterFileError(
                f"{where} has an unknown key {key!r}: {nearest(key, known, 'keys')}"
            )
    for key, each in known.items():
        required = each.default is MISSING and each.default_factory is MISSING
        if required and key not in values:
            raise ClusterFileError(f"{where}: the key {key!r} is missing")
    checked = {
        key: _checked(known[key].type, value, f"{where}.{key}") for key, value in values.items()
    }
    return kind(**checked, **(made or {}))


def _stack(name: str, values: Any, where: str) -> SoftwareStack:
    """Makes a stack, with the curves that it may have."""
    if not isinstance(values, dict):
        raise ClusterFileError(f"{where} is a table of keys")
    values = dict(values)
    made = {}
    for key, kind in (("curves", Curve), ("collectives", CollectiveCurve)):
        curves = values.pop(key, [])
        if not isinstance(curves, list):
            raise ClusterFileError(f"{where}.{key} is a list of tables")
        made[key] = tuple(_made(kind, c, f"{where}.{key}[{i}]") for i, c in enumerate(curves))
    return _made(SoftwareStack, {"name": name, **values}, where, made)


def _checked(kind: Any, value: Any, where: str) -> Any:
    """Checks the kind of a value; numbers are not negative."""
    if kind in ("float", "int"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or value < 0 or (kind == "int" and value != int(value)):
            raise ClusterFileError(f"{where} is {value!r}, and must be a number of at least 0")
        return float(value) if kind == "float" else int(value)
    if kind == "bool" and not isinstance(value, bool):
        raise ClusterFileError(f"{where} is {value!r}, and must be true or false")
    if kind == "str" and not isinstance(value, str):
        raise ClusterFileError(f"{where} is {value!r}, and must be text")
    if str(kind).startswith("Mapping"):
        return {key: _checked("float", each, f"{where}.{key}") for key, each in value.items()}
    if str(kind).startswith("tuple"):
        return _points(value, where)
    return value


def _points(value: Any, where: str) -> tuple[Point, ...]:
    """Checks measured points: size, seconds and spread, by growing size."""
    is_list = isinstance(value, list) and all(isinstance(p, list) and len(p) == 3 for p in value)
    if not is_list or not value:
        raise ClusterFileError(f"{where} is a list of [size, seconds, spread]")
    points = [tuple(_checked("float", number, where) for number in point) for point in value]
    if any(low[0] >= high[0] for low, high in itertools.pairwise(points)) or not points[0][0]:
        raise ClusterFileError(f"{where}: sizes grow from point to point")
    return tuple(points)  # type: ignore[arg-type]


def _check_choice(where: str, stack: SoftwareStack, choices: tuple[str, ...]) -> None:
    if stack.attention not in choices:
        known = nearest(stack.attention, choices, "ways")
        raise ClusterFileError(f"{where}={stack.attention!r}: {known}")
