"""Cluster files: the speed and size of a cluster's devices, links and software, in TOML.

Every number is in SI units: bytes, seconds, bytes/s, FLOP/s. `docs/planning.md` lists the keys.
Each field of the classes below is a key, with its type and its range. Errors name the wrong key.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from t2tp.hparam_limits import Limits
from t2tp.step.kernels import WITHOUT_KERNEL, Kernels, own_kernels
from t2tp.step.memory import HEADROOM, RESERVED, usable
from t2tp.step.work import KINDS
from t2tp.suggestions import check_known, nearest
from t2tp.typed_files import InvalidFileError, convert, read_toml

# The name of the cluster that t2tp_calibrate measures: a file in the working directory.
THIS_MACHINE = "this_machine"
# A value of `attention`: a dedicated kernel whose speed is in `SoftwareStack.shares`.
MEASURED_KERNEL = "kernel"

Count = Annotated[int, Limits(min=0)]
Number = Annotated[int, Limits(min=1)]
Share = Annotated[float, Limits(above=0.0, max=1.0)]
Fraction = Annotated[float, Limits(min=0.0, max=1.0)]
# A number of bytes, bytes/s or FLOP/s below this is in the wrong unit.
Large = Annotated[float, Limits(min=1e6)]
Size = Annotated[float, Limits(min=0.0)]
Short = Annotated[float, Limits(min=0.0, max=1e-3)]
# Head size, share of the peak, ramp.
Point = tuple[Annotated[float, Limits(above=0.0)], Share, Size]

_FILES = Path(__file__).parent / "clusters"


class ClusterFileError(ValueError):
    """A cluster file that cannot be read."""


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
      peak: FLOP/s of large matmuls by activation dtype.
      memory: bytes of memory.
      bandwidth: bytes/s of the memory.
      launch: seconds that the device idles between two operations.
      reserved: bytes that the driver and libraries occupy.
      cores: cores of a host, if its devices share cores and memory, as virtual CPU devices do; 0:
        each device is a separate chip.
    """

    name: str
    peak: dict[Literal["float32", "bfloat16", "float16"], Large]
    memory: Large
    bandwidth: Large
    launch: Short = 0.0
    reserved: Size = RESERVED
    cores: Count = 0

    def __post_init__(self) -> None:
        for dtype in self.peak:
            check_known(dtype, ("float32", "bfloat16", "float16"), "dtypes", f"peak.{dtype}")
        if not self.peak:
            raise ValueError("peak is empty: give FLOP/s by dtype")
        if self.reserved >= self.memory:
            raise ValueError(f"reserved is {self.reserved:g}, and must be below memory")


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
      cards: the links that a collective uses if several of its members are in one host: the links
        of all these members (`host`) or the link of one of them (`rank`). At the level between
        racks, `cards` chooses between the links of the members in one rack.
    """

    name: str
    bandwidth: Large
    latency: Annotated[float, Limits(min=0.0, max=0.1)]
    devices: Count = 0
    shared_by: Number = 1
    shared_by_all: bool = False
    cards: Literal["host", "rank"] = "host"


@dataclass(frozen=True)
class AttentionKernel:
    """The speed of an attention kernel that saves no scores, on a kind of device.

    The speed of each pass is a list of `[head size, share, ramp]`. Long sequences reach `share` of
    the peak, and sequences of `ramp` keys reach half of `share`. The FLOPs do not include scores
    that a causal mask hides.

    Attributes:
      forward, backward: speed of the passes without a mask.
      causal_forward, causal_backward: speed of the passes with a causal mask.
      source: source of the numbers.
    """

    forward: tuple[Point, ...]
    backward: tuple[Point, ...]
    causal_forward: tuple[Point, ...]
    causal_backward: tuple[Point, ...]
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "causal_forward", "causal_backward"):
            points = getattr(self, name)
            if not points or any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
                raise ValueError(f"{name}: head sizes must grow from point to point")

    def share(self, head_size: float, keys: float, *, is_forward: bool, causal: bool) -> float:
        """Returns the share of the peak for queries that attend to `keys` keys."""
        name = f"{'causal_' if causal else ''}{'forward' if is_forward else 'backward'}"
        sizes, shares, ramps = zip(*getattr(self, name), strict=True)
        share = float(np.interp(head_size, sizes, shares))
        ramp = float(np.interp(head_size, sizes, ramps))
        return share * keys / (keys + ramp)


@dataclass(frozen=True)
class SoftwareStack(Kernels):
    """The share of a device's speed that a software stack reaches, and its kernels.

    Attributes:
      own: whether it is t2tp, whose program is planned as it is. `fuses` and `attention` then
        describe a step that XLA compiles, on one device.
      product: share of the peak that matmuls reach.
      batched: share of the peak that batched matmuls reach (unfused attention).
      memory: share of the bandwidth that memory-bound operations on activations reach.
      stream: share of the bandwidth that the optimizer's update, copies, and matmuls reach.
      shares: measured shares by kind of work, which replace the four above.
      host: seconds per variable and slot that the device waits for the host in each launch, between
        operations included.
      weights_where_used: whether a pipeline stage has only the weights that it uses. In t2tp, this
        is false: all stages have the embeddings.
      unsharded_layers: number of layers whose weights ZeRO 3 holds gathered at the same time, in
        use or prefetched. If this number is above 0, the unreduced gradients of one layer are in
        memory, too.
      cached_layers: number of layers whose weights, in 16 bits, must fit into the free memory in
        ZeRO 3. If they do not fit, PyTorch's allocator may retry.
      link: share of a link's bandwidth that collectives reach.
      start: seconds of a collective before its first message.
      overlap: share of the collectives of gradients and weights that overlaps with computation.
      overlap_activations: share of the backward pass's collectives of activations that overlaps
        with the gradients of weights.
      overlap_forward: share of the forward pass's collectives of activations that overlaps with
        matmuls, as in Transformer Engine.
      error: relative error of the planner on steps to which no constant was fitted. The default
        includes 39 of 40 published steps (`tests/planner/published_steps.py`).
      source: source of the constants.
    """

    own: bool = False
    attention: str = "unfused"
    fuses: bool = True
    product: Share = 0.75
    batched: Share = 0.5
    memory: Share = 0.85
    stream: Share = 0.85
    shares: dict[str, Share] = field(default_factory=dict, hash=False)
    host: Short = 0.0
    weights_where_used: bool = False
    unsharded_layers: Count = 0
    cached_layers: Size = 0.0
    link: Share = 0.8
    start: Short = 0.0
    overlap: Fraction = 0.0
    overlap_activations: Fraction = 0.0
    overlap_forward: Fraction = 0.0
    error: Fraction = 0.1
    source: str = ""

    def __post_init__(self) -> None:
        for kind in self.shares:
            check_known(kind, KINDS, "kinds of work", f"shares.{kind}")


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
      processes: number of processes that share the devices of a host, if `device.cores` is above 0.
      steps_per_launch: number of steps that one launch runs.
      headroom: share of the memory that a plan must leave free, for what the planner does not
        model.
      source: source of the numbers.
    """

    name: str
    device: Device
    links: tuple[Link, ...]
    stacks: dict[str, SoftwareStack]
    host_devices: Number
    kernels: dict[str, AttentionKernel] = field(default_factory=dict)
    stack: str = ""
    price_per_hour: Size = 0.0
    processes: Number = 1
    steps_per_launch: Number = 1
    headroom: Annotated[float, Limits(min=0.0, below=1.0)] = HEADROOM
    source: str = ""

    def __post_init__(self) -> None:
        """Checks the keys that depend on each other."""
        if not self.links or not self.stacks:
            raise ValueError("it needs at least one [[links]] and [stacks.NAME]")
        object.__setattr__(self, "stack", self.stack or next(iter(self.stacks)))
        check_known(self.stack, self.stacks, "stacks", f"stack is {self.stack!r}")
        kernels = (*self.kernels, *WITHOUT_KERNEL, MEASURED_KERNEL)
        for name, stack in self.stacks.items():
            where = f"stacks.{name}.attention is {stack.attention!r}"
            check_known(stack.attention, kernels, "kernels", where)
        reach = [link.devices for link in self.links]
        for i, (near, far) in enumerate(itertools.pairwise(reach)):
            if near == 0 or 0 < far <= near:
                raise ValueError(
                    f"links[{i + 1}].devices must be above links[{i}].devices, {near}: links go"
                    " from the nearest level to the farthest, and only the last connects all"
                    " devices (0)"
                )
        if reach[-1] > 0:
            raise ValueError(
                f"links[{len(reach) - 1}].devices is {reach[-1]}, and the farthest level must"
                " connect all devices: leave it out"
            )

    @property
    def software(self) -> SoftwareStack:
        """The stack in use."""
        return self.stacks[self.stack]

    @classmethod
    def load(cls, path: str, stack: str = "") -> "ClusterFile":
        """Reads a file by its path, or a file that comes with t2tp by its name.

        Args:
          path: path of a file ending in `.toml`, or a name such as `a100` or `this_machine`.
          stack: name of the stack to use. Default: the stack that the file selects.

        Raises:
          ClusterFileError: there is no such file or stack, or the file is invalid.
        """
        try:
            cluster = convert(_table(path), cls, f"cluster file {path}")
        except OSError as error:
            raise ClusterFileError(f"cluster file {path}: {error.strerror}") from error
        except InvalidFileError as error:
            raise ClusterFileError(str(error)) from error
        return cluster.with_stack(stack) if stack else cluster

    def with_stack(self, name: str) -> "ClusterFile":
        """Returns the cluster with another of its stacks in use.

        Raises:
          ClusterFileError: the cluster has no such stack.
        """
        where = f"cluster {self.name} has no stack {name!r}"
        check_known(name, self.stacks, "stacks", where, ClusterFileError)
        return replace(self, stack=name)

    def on_mesh(self, devices: int) -> "ClusterFile":
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
        """Returns the FLOP/s of one device for a dtype; see `peak_dtype`."""
        return self.device.peak[self.peak_dtype(dtype)]  # type: ignore[index]

    def peak_dtype(self, dtype: str) -> str:
        """Returns the dtype whose peak is used: `dtype`, or else float32 or the fastest."""
        by_dtype = self.device.peak
        fastest = max(by_dtype, key=lambda name: by_dtype[name])
        return next((name for name in (dtype, "float32") if name in by_dtype), fastest)


def shipped() -> list[str]:
    """Returns the names of the cluster files that come with t2tp."""
    return sorted(file.name.removesuffix(".toml") for file in _FILES.iterdir())


def _table(path: str) -> dict[str, Any]:
    """Reads the table of a file, with the tables that it takes from others by `like`."""
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
        path = str(_FILES / f"{path}.toml")
    source = f"cluster file {path}"
    table = read_toml(Path(path).expanduser(), {"stacks": dict[str, dict[str, Any]], "like": str})
    parent = table.pop("like", None)
    if parent is not None:
        sentence = f"{source}: like is {parent!r}"
        check_known(parent, shipped(), "clusters", sentence, InvalidFileError)
        table = _merged(_table(parent), table)
    stacks: dict[str, Any] = {}
    keys = ["like", *(each.name for each in fields(SoftwareStack))]
    for name, stack in table.get("stacks", {}).items():
        for key in stack:
            check_known(key, keys, "keys", f"{source}: stacks.{name}.{key}", InvalidFileError)
        above = stack.pop("like", None)
        if above is not None:
            sentence = f"{source}: stacks.{name}.like is {above!r}"
            check_known(str(above), stacks, "stacks before it", sentence, InvalidFileError)
        stacks[name] = {**stacks.get(above, {}), **stack}
    return {**table, **({"stacks": stacks} if stacks else {})}


def _merged(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with the keys of `table`; tables in both are merged, too."""
    both = {
        key: _merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in table.items()
    }
    return {**base, **both}
