"""The data of a layout report: tensors and their slices, memory, collectives, the pipeline."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp import upstream
from t2tp.building.mesh import context_of
from t2tp.mesh.axes import JOIN
from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layout import Layout
from t2tp.mesh.stages import LAYERS
from t2tp.mesh.storage import name_in_use
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.messages import message_kinds
from t2tp.pipeline.schedule import Schedule
from t2tp.step.attribution import CollectiveUse
from t2tp.step.memory import RESERVED, fits
from t2tp.step.work import FORWARD


@dataclass(frozen=True)
class SlicedTensor:
    """A tensor and its slices.

    Attributes:
      dtype: dtype of the slices.
      stages: number of a pipeline's stages if each has its own tensor of this name, else 1.
    """

    name: str
    shape: upstream.Shape
    dtype: tf.DType
    layout: Layout
    stages: int = 1

    @property
    def axes(self) -> tuple[str | None, ...]:
        """The mesh axis that splits each dimension, or None; `data+expert` means both axes."""
        # An axis of size 1 splits nothing. It is there so that rules with its name stay valid.
        axes = (self.layout.axis_of(dim.name) for dim in self.shape.dims)
        return tuple(axis.name if axis and axis.size > 1 else None for axis in axes)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of a slice."""
        return self.layout.slice_size(self.shape)

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice."""
        return math.prod(self.slice_shape) * self.dtype.size

    @property
    def copies(self) -> int:
        """The number of devices with the same slice."""
        # Along the other axes devices hold equal slices.
        axes = (self.layout.axis_of(dim.name) for dim in self.shape.dims)
        slices = math.prod(axis.size for axis in axes if axis)
        return self.layout.size // (self.stages * slices)

    def holders(self) -> dict[tuple[range, ...], list[int]]:
        """Maps each distinct slice, as index ranges, to its processors."""
        holders: dict[tuple[range, ...], list[int]] = {}
        for pnum in range(self.layout.size):
            part = self.layout.slices(self.shape, pnum)
            # Ranges can be keys; slices cannot before Python 3.12.
            holders.setdefault(tuple(range(s.start, s.stop) for s in part), []).append(pnum)
        return holders

    def describe(self) -> str:
        """Formats the shape: `[batch=8/data, d_ff=12]`, where the axis `data` splits `batch`."""
        # A dimension that ZeRO shards has a name at rest that no model has: `d_model@data`.
        dims = zip(self.shape.dims, self.axes, strict=True)
        formatted = (
            f"{name_in_use(dim.name)}={dim.size}" + (f"/{axis}" if axis else "")
            for dim, axis in dims
        )
        return f"[{', '.join(formatted)}]"


@dataclass(frozen=True)
class CollectiveLine(Collective):
    """A collective of the program.

    Attributes:
      in_loop: whether the collective runs in every iteration of a loop.
      uses: the tensors that it serves; their bytes sum to `bytes`.
    """

    phase: str = FORWARD
    in_loop: bool = False
    uses: tuple[CollectiveUse, ...] = ()


Use = tuple[CollectiveLine, CollectiveUse]


@dataclass(frozen=True)
class VariableLine:
    """A variable of the model.

    Attributes:
      tensor: the variable, with the dtype of its slices.
      activation_dtype: dtype of the value that the model reads.
    """

    tensor: SlicedTensor
    activation_dtype: tf.DType
    trainable: bool
    slots: tuple[SlicedTensor, ...] = ()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots per device."""
        return sum(slot.slice_bytes for slot in self.slots)


@dataclass(frozen=True)
class Activation:
    """A tensor that a step computes or is fed.

    Attributes:
      operation: type of the operation that computes it, such as `Einsum`.
      is_fed: whether it is a feature.
      is_kept: whether the forward pass computes it and a later phase reads it.
      in_loop: whether it is computed in every iteration of a loop.
    """

    tensor: SlicedTensor
    operation: str
    phase: str
    is_fed: bool = False
    is_kept: bool = False
    in_loop: bool = False


@dataclass(frozen=True)
class PipelineLine:
    """A pipeline's line in a report; `facts` are sentences about its stages and messages."""

    schedule: Schedule
    facts: tuple[str, ...]

    @classmethod
    def of_loop(cls, loop: PipelineLoop, layout: Layout) -> "PipelineLine":
        """Describes the loop of a pipeline."""
        return cls(loop.schedule, tuple(_pipeline_facts(loop, layout)))


def _pipeline_facts(loop: PipelineLoop, layout: Layout) -> Iterator[str]:
    schedule, alive = loop.schedule, loop.schedule.alive()
    yield (
        f"{layout.pipeline.schedule if schedule.trains else 'evaluation'}:"
        f" {schedule.microbatches} microbatches through {schedule.stages} stages in"
        f" {schedule.ticks} ticks; stages are idle {schedule.bubble():.1%} of the time if the"
        " parts of a backward pass take as long as a forward pass"
    )
    # The graph has the layers of one stage; these are their names on each stage.
    scopes = context_of(loop.mesh).stage_scopes.values()
    for stage in range(schedule.stages):
        layers = [name for names in scopes if (name := names[stage]) is not None]
        saved = f"; activations of at most {alive[stage]} at once" if schedule.trains else ""
        yield f"stage {stage}: {len(layers)} layers, {_ranges(layers)}{saved}"
    # A decoder also passes on the encoder's output. Not all that is passed on has gradients.
    exits = map(loop.partition.exit_of, range(len(loop.partition.enters)))
    sizes = dict.fromkeys(kind.num_bytes for op in exits for kind in message_kinds(op, layout))
    listed = " or ".join(f"{size:,}" for size in sizes)
    yield f"a message to the next stage, or back: {listed} bytes"


def _ranges(names: Sequence[str]) -> str:
    """Lists the names of layers; shortens the names of each stack."""
    stacks: dict[str, list[str]] = {}
    for name in names:
        stacks.setdefault(name.rpartition("/")[0], []).append(name)
    return ", ".join(
        ", ".join(own) if len(own) < 4 else f"{own[0]}, {own[1]} to {own[-1]}"
        for own in stacks.values()
    )


@dataclass(frozen=True)
class ReportData:
    """The data of a report.

    Attributes:
      devices: the device of each processor; empty for an abstract program.
      warnings: rules and axes without effect, one sentence each.
      activations: the tensors of the step that take memory, features first.
      memory: bytes of a device by purpose, at the peak of the step; see `t2tp.step.memory`.
    """

    layout: Layout
    devices: tuple[str, ...]
    warnings: tuple[str, ...]
    variables: tuple[VariableLine, ...]
    activations: tuple[Activation, ...]
    collectives: tuple[CollectiveLine, ...]
    memory: Mapping[str, float]
    pipeline: PipelineLine | None = None

    @functools.cached_property
    def uses_by_variable(self) -> dict[str, list[Use]]:
        """The collectives of each variable, with their uses."""
        return self._uses_by(lambda use: {*use.used, use.gradient_of})

    @functools.cached_property
    def uses_by_tensor(self) -> dict[str, list[Use]]:
        """For each tensor, the collectives that reduce it or that its operation emits."""
        # mesh-tensorflow names the first output of an operation `<operation>:0`.
        return self._uses_by(lambda use: {use.tensor.removesuffix(":0")})

    def _uses_by(
        self, names_of: Callable[[CollectiveUse], set[str | None]]
    ) -> dict[str, list[Use]]:
        uses: dict[str, list[Use]] = defaultdict(list)
        for line in self.collectives:
            for use in line.uses:
                for name in names_of(use):
                    if name is not None:
                        uses[name].append((line, use))
        return uses

    def splits(self) -> dict[str, tuple[str, ...]]:
        """Returns the dimensions that each mesh axis splits."""
        tensors = [*(v.tensor for v in self.variables), *(a.tensor for a in self.activations)]
        # Each stage has layers of its own: no tensor has the dimension of layers.
        of_stages = {axis.name for axis in self.layout.axes_of(LAYERS)}
        return {
            axis.name: (LAYERS,)
            if axis.name in of_stages
            else tuple(
                dict.fromkeys(
                    name_in_use(dim.name)
                    for tensor in tensors
                    for dim, by in zip(tensor.shape.dims, tensor.axes, strict=True)
                    # Several axes may split one dimension: `data+expert`.
                    if by is not None and axis.name in by.split(JOIN)
                )
            )
            for axis in self.layout.mesh_shape.dims
        }

    def fits(self, memory: float) -> str:
        """Returns whether the step fits a device of `memory` bytes: see `t2tp.step.memory.fits`."""
        return fits(self.needed, memory)

    @property
    def needed(self) -> float:
        """Bytes of a device at the peak, including the driver's and the libraries' bytes."""
        return sum(self.memory.values()) + RESERVED
