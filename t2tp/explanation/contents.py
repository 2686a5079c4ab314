"""What there is to say of a program: its tensors, how they are cut, and its collectives."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream as mtf
from t2tp.mesh.layout import Layout


class Phase(enum.Enum):
    """When in a step something is computed."""

    FORWARD = "forward"
    BACKWARD = "backward"  # What mtf.gradients added.
    UPDATE = "update"  # What comes after the first gradient and is none: optimizers, mostly.


@dataclass(frozen=True)
class CutTensor:
    """A tensor, and how the layout cuts it.

    Attributes:
      name: the tensor's.
      shape: its global shape.
      dtype: of the elements that a device holds.
      layout: mesh and rules.
    """

    name: str
    shape: mtf.Shape
    dtype: tf.DType
    layout: Layout

    @property
    def axes(self) -> tuple[str | None, ...]:
        """For each dimension the mesh axis that cuts it, if one does."""
        axes = (self.layout.axis_of(dim.name) for dim in self.shape.dims)
        return tuple(axis.name if axis and axis.size > 1 else None for axis in axes)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of what a device holds."""
        return self.layout.slice_size(self.shape)

    @property
    def slice_bytes(self) -> int:
        """Bytes that a device holds."""
        return math.prod(self.slice_shape) * self.dtype.size

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.shape.size * self.dtype.size

    @property
    def copies(self) -> int:
        """How many devices hold the same slice."""
        return self.layout.size * math.prod(self.slice_shape) // self.shape.size

    def holders(self) -> dict[tuple[range, ...], list[int]]:
        """Each different slice, as a range of indices a dimension -> the processors that hold
        it."""
        holders: dict[tuple[range, ...], list[int]] = {}
        for pnum in range(self.layout.size):
            part = self.layout.slices(self.shape, pnum)
            holders.setdefault(tuple(range(s.start, s.stop) for s in part), []).append(pnum)
        return holders

    def describe(self) -> str:
        """The shape for people: `[batch=8/data, d_ff=12]`, where `/data` cuts."""
        dims = zip(self.shape.dims, self.axes, strict=True)
        said = (f"{dim.name}={dim.size}" + (f"/{axis}" if axis else "") for dim, axis in dims)
        return f"[{', '.join(said)}]"


@dataclass(frozen=True)
class Share:
    """What a collective does for one tensor.

    Attributes:
      tensor: the one that it completes; where no tensor is known, the name of the operation that
        asked for the collective.
      bytes: what each processor puts in.
      over: names of the dimensions that are summed or exchanged, as far as they are known.
      is_sum: whether it completes a sum that was put off.
      used: the variables that the sum was made with.
      gradient_of: the variable of which this is the gradient.
      together: how many tensors the collective serves.
    """

    tensor: str
    bytes: int
    over: tuple[str, ...]
    is_sum: bool = False
    used: tuple[str, ...] = ()
    gradient_of: str | None = None
    together: int = 1


@dataclass(frozen=True)
class Move:
    """A collective of the program.

    Attributes:
      kind: `allreduce`, `allgather`, `alltoall` or `permute`.
      axes: names of the mesh axes that it runs over.
      group_size: how many processors take part in one.
      bytes: what each processor puts in.
      operation: the one that asked for it; empty: an output of the program.
      phase: when that is.
      in_loop: whether it runs in every iteration of a loop.
      times: how often a step runs it; 1 in a loop whose length is known only when it runs.
      shares: what it does for which tensors; their bytes add up to `bytes`.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    bytes: int
    operation: str
    phase: Phase
    in_loop: bool
    times: int
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class VariableLine:
    """A variable of the model.

    Attributes:
      tensor: the variable; its dtype is that of the slices.
      master_dtype: what it is saved in.
      activation_dtype: what it is read as.
      trainable: whether an optimizer changes it.
      slots: what the optimizer keeps for it.
    """

    tensor: CutTensor
    master_dtype: tf.DType
    activation_dtype: tf.DType
    trainable: bool
    slots: tuple[CutTensor, ...] = ()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots on a device."""
        return sum(slot.slice_bytes for slot in self.slots)


@dataclass(frozen=True)
class Activation:
    """A tensor that a step computes, or is fed.

    Attributes:
      tensor: the tensor.
      operation: kind of the operation that makes it, such as `Einsum`.
      phase: when.
      is_fed: whether it is a feature.
      is_kept: whether it is made forward, and needed after that.
      in_loop: whether it is made in every iteration of a loop.
    """

    tensor: CutTensor
    operation: str
    phase: Phase
    is_fed: bool = False
    is_kept: bool = False
    in_loop: bool = False


@dataclass(frozen=True)
class MemoryLine:
    """Memory for one purpose.

    Attributes:
      what: the purpose.
      on_device: bytes on each device.
      whole: bytes of the whole tensors, each once.
    """

    what: str
    on_device: int
    whole: int


@dataclass(frozen=True)
class Contents:
    """All that there is to say of a program.

    Attributes:
      layout: mesh and rules.
      devices: name of each processor's device; empty if there are none.
      warnings: what in the layout has no effect, in sentences.
      variables: those of the step, in its order.
      activations: the tensors of the step that take memory, features first.
      moves: its collectives, in the order of the program.
    """

    layout: Layout
    devices: tuple[str, ...]
    warnings: tuple[str, ...]
    variables: tuple[VariableLine, ...]
    activations: tuple[Activation, ...]
    moves: tuple[Move, ...]

    def splits(self) -> dict[str, tuple[str, ...]]:
        """For each mesh axis the dimensions that it really splits."""
        tensors = [*(v.tensor for v in self.variables), *(a.tensor for a in self.activations)]
        return {
            axis.name: tuple(
                dict.fromkeys(
                    dim.name
                    for tensor in tensors
                    for dim, by in zip(tensor.shape.dims, tensor.axes, strict=True)
                    if by == axis.name
                )
            )
            for axis in self.layout.mesh_shape.dims
        }

    def computed(self) -> list[Activation]:
        """The activations that are not fed, the largest first."""
        computed = (a for a in self.activations if not a.is_fed)
        return sorted(computed, key=lambda a: -a.tensor.slice_bytes)

    def device_bytes(self) -> int:
        """Bytes that a step takes on a device: what `memory` lists, and, if it trains, the
        gradients in float32; activations are an estimate."""
        listed = sum(line.on_device for line in self.memory())
        trains = any(v.slots for v in self.variables) or any(a.is_kept for a in self.activations)
        if not trains:
            return listed
        trained = (v.tensor.slice_shape for v in self.variables if v.trainable)
        return listed + sum(math.prod(shape) * tf.float32.size for shape in trained)

    def memory(self) -> list[MemoryLine]:
        """What takes memory, by what it is for; activations are an estimate."""
        computed = self.computed()
        tensors = {
            "variables": [line.tensor for line in self.variables],
            "optimizer slots": [slot for line in self.variables for slot in line.slots],
            "features": [a.tensor for a in self.activations if a.is_fed],
            "activations kept for the backward pass": [a.tensor for a in computed if a.is_kept],
            "largest activation": [a.tensor for a in computed[:1]],
        }
        return [
            MemoryLine(what, sum(t.slice_bytes for t in these), sum(t.whole_bytes for t in these))
            for what, these in tensors.items()
        ]


def totals(moves: Sequence[Move]) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Adds collectives up, like `Program.collectives`."""
    sums: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for move in moves:
        count, size = sums.get((move.kind, move.axes), (0, 0))
        sums[move.kind, move.axes] = (count + move.times, size + move.bytes * move.times)
    return sums
