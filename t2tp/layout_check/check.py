"""Runs a step on a mesh and on one device, in float64, and compares their tensors."""

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.argument_types import checked
from t2tp.building.mesh import Mesh, names_by_stage
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.lowering.lowering import live_operations
from t2tp.mesh.layout import Layout
from t2tp.ops.cast import CastOperation
from t2tp.ops.dropout import DropoutOperation
from t2tp.processes.cluster import Cluster, connect
from t2tp.program.outputs import Outputs
from t2tp.program.program import Feature, StepFn
from t2tp.program.variables import padded, real_part

# Max difference relative to a tensor's largest value: 1e4 times the rounding error of float64.
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Compared:
    """The comparison of a tensor of both programs.

    Attributes:
      kind: `output`, `gradient`, `mask` or `update`.
      name: name of the output, the variable, or the operation.
      shape: dimensions with the axes of the mesh, as in `[batch=8/data, d_ff=16/model]`.
      error: the largest difference in any processor's slice, divided by `scale`.
      scale: the absolute value by which differences are divided.
    """

    kind: str
    name: str
    shape: str
    error: float
    scale: float

    @property
    def agrees(self) -> bool:
        """Whether the tensors are equal except for rounding; False for NaN."""
        return self.error <= TOLERANCE


@dataclass(frozen=True)
class FirstDifference:
    """The first tensor of the step that differs.

    Attributes:
      operation: the operation that computes it, as in `einsum_3 (EinsumOperation)`.
      inputs: the operation's inputs, which agree.
    """

    tensor: Compared
    operation: str
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        """The finding, as a sentence."""
        computed = f"computed from {', '.join(self.inputs)}" if self.inputs else "without inputs"
        return (
            f"The first tensor that differs is {self.tensor.name} {self.tensor.shape}, by"
            f" {self.tensor.error:.1e}, after the operation {self.operation}, {computed}"
            f"{', which agree' if self.inputs else ''}."
        )


@dataclass(frozen=True)
class LayoutCheck:
    """The result of `check_layout`; `str()` is a table and a sentence.

    Attributes:
      compared: outputs, gradients, masks and updated variables.
      first: first tensor that differs; None if all agree, or if only the update differs.
    """

    layout: str
    compared: tuple[Compared, ...]
    first: FirstDifference | None = None

    @property
    def agrees(self) -> bool:
        """Whether the layout and one device compute the same values."""
        return all(each.agrees for each in self.compared)

    def __str__(self) -> str:
        """Returns the table and the finding."""
        width = max(len(each.name) for each in self.compared)
        lines = [f"{self.layout}, in float64, against one device"]
        lines += [
            f"{each.kind:8}  {each.name:{width}}  {each.error:8.1e}"
            f"  {'' if each.agrees else 'DIFFERS  '}{each.shape}".rstrip()
            for each in self.compared
        ]
        return "\n".join([*lines, self.finding()])

    def finding(self) -> str:
        """Returns the result as sentences."""
        if self.agrees:
            return (
                f"All {len(self.compared)} agree to {TOLERANCE:.0e}: differences in float32 are"
                " rounding."
            )
        wrong = [each for each in self.compared if not each.agrees]
        counted = f"{len(wrong)} of {len(self.compared)} differ by more than {TOLERANCE:.0e}."
        if self.first is not None:
            return f"{counted} {self.first}"
        return (
            f"{counted} Every tensor of the step agrees when all are outputs. Otherwise the first"
            f" that differs is the {wrong[0].kind} {wrong[0].name}. It is computed in a loop, by"
            " the update, or from sums that stay deferred only where no output needs them."
        )


# Gradients below this fraction of the largest gradient are rounding errors. Their updates are not
# compared, because optimizers that divide by a gradient's size make these updates large.
_NEGLIGIBLE = 1e-9
# Standard deviation of the noise added to weights; initial zeros and ones would hide differences.
_NOISE = 0.05

_Tensors = dict[str, upstream.Tensor]
# Maps (mesh, outputs, gradients) to the tensors to compare, with keys "<kind> <name>".
_Choose = Callable[[Mesh, _Tensors, _Tensors], _Tensors]


@checked
def check_layout(
    step_fn: StepFn,
    features: Mapping[str, Feature] | None = None,
    batch: Mapping[str, np.ndarray] | None = None,
    *,
    mesh_shape: str | Mapping[str, int] = "",
    layout: str | Mapping[str, str | Sequence[str]] | Layout = "",
    seed: int = 0,
) -> LayoutCheck:
    """Compares a step on a mesh with the same step on one device, in float64.

    The mesh consists of virtual CPU devices, so any machine is suitable. Choose small dimensions.

    Args:
      step_fn: builds the step, as for `Program`. Its outputs, the variables' gradients from
        `mtf.gradients`, random masks and updated variables are compared.
      features: the step's inputs.
      batch: global arrays by name.
      mesh_shape: a mesh such as `data:2;model:4`.
      layout: rules such as `batch:data;d_ff:model`, or a `Layout` with its own mesh shape.
      seed: seed of initial values and random operations.

    Raises:
      LayoutError: the layout cannot work for a tensor of the model.
      ValueError: TensorFlow has started up with fewer devices than the mesh needs.
    """
    # `exact_sums` does not support float64, and float64 does not need it.
    layout = Layout.from_arguments(mesh_shape, layout).without_exact_sums()
    cluster = virtual_devices(layout.size)
    pair = _Pair(step_fn, dict(features or {}), layout, cluster, seed)
    compared = pair.run(_gradients_and_masks, dict(batch or {}))
    compared += pair.compare_updates()
    order = {kind: i for i, kind in enumerate(("output", "gradient", "mask", "update"))}
    compared.sort(key=lambda each: order[each.kind])
    first = None
    if not all(each.agrees for each in compared):
        everything = pair.run(_all_tensors, dict(batch or {}))
        first = next((pair.explain(each) for each in everything if not each.agrees), None)
    return LayoutCheck(str(layout), tuple(compared), first)


def virtual_devices(count: int) -> Cluster:
    """Creates virtual CPU devices, even on a machine with GPUs.

    TensorFlow must not have started up with fewer devices.

    Raises:
      ValueError: TensorFlow has started up with fewer devices.
    """
    with contextlib.suppress(RuntimeError):  # TensorFlow has started up.
        tf.config.set_visible_devices([], "GPU")
    return connect(count)


@dataclass(eq=False)
class _Pair:
    """A step on the mesh, and the same step on the mesh's first device alone."""

    step_fn: StepFn
    features: Mapping[str, Feature]
    layout: Layout
    cluster: Cluster
    seed: int
    _operations: dict[str, upstream.Operation] = field(default_factory=dict, init=False)
    _gradients: dict[str, np.ndarray] = field(default_factory=dict, init=False)

    def run(self, choose: _Choose, batch: dict[str, np.ndarray]) -> list[Compared]:
        """Runs both steps, with equal variables, and compares the tensors that `choose` returns."""
        alone = Cluster(self.cluster.devices[:1])
        self._one = self._program(choose, Layout(), alone)
        self._many = self._program(choose, self.layout, self.cluster)
        for program in (self._one, self._many):
            _perturb(program)
        wanted, found = (program(batch, step=1) for program in (self._one, self._many))
        self._gradients = {
            name.partition(" ")[2]: wanted[name] for name in wanted if name.startswith("gradient ")
        }
        # Tensors of pipeline stages differ between stages and are not compared. The updates show
        # whether the stages' gradients are right.
        return [self._compare(name, wanted, found) for name in wanted if name in found]

    def compare_updates(self) -> list[Compared]:
        """Compares the variables' values after `run`."""
        after = {v.spec.name: self._one.value_of(v, 0) for v in self._one.variables}
        trained = [v.spec.name for v in self._one.variables if v.spec.trainable]
        # All slots of a kind, such as Adam's means of all weights, are compared at one scale. If a
        # weight's gradient is zero except for rounding, the weight's slot has only rounding errors,
        # and these are large relative to that slot.
        scales: dict[str, float] = defaultdict(float)
        for name, value in after.items():
            kind = _slot(name, trained)
            scales[kind] = max(scales[kind], _largest(value))
        compared = []
        for variable in self._many.variables:
            name = variable.spec.name
            counts = self._counts(name, after[name].shape)
            scale, error = scales[_slot(name, trained)] or 1.0, 0.0
            for pnum in variable.local_pnums:
                region = variable.region(pnum)
                value = real_part(self._many.value_of(variable, pnum), region)
                difference = np.where(counts[region], _difference(value, after[name][region]), 0.0)
                error = max(error, _relative(difference, scale))
            shape = self._split(variable.spec.shape)
            compared.append(Compared("update", name, shape, error, scale))
        return compared

    def _counts(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a mask of the elements whose gradient is larger than rounding errors."""
        if name not in self._gradients:
            return np.ones(shape, bool)
        return np.abs(self._gradients[name]) > _NEGLIGIBLE * self._largest_gradient()

    def explain(self, compared: Compared) -> FirstDifference:
        """Names the operation that computes a tensor, and its inputs."""
        op = self._operations[f"{compared.kind} {compared.name}"]
        inputs = tuple(
            f"{x.name.removesuffix(':0')} {self._split(x.shape)}" for x in dict.fromkeys(op.inputs)
        )
        return FirstDifference(compared, f"{op.name} ({type(op).__name__})", inputs)

    def _program(self, choose: _Choose, layout: Layout, cluster: Cluster) -> DoubleProgram:
        def step_fn(mesh: Mesh, features: dict[str, upstream.Tensor]) -> dict[str, upstream.Tensor]:
            outputs = self.step_fn(mesh, features)
            chosen = {
                key: tensor
                for key, tensor in choose(mesh, dict(outputs), _gradients(mesh)).items()
                if names_by_stage(mesh, key.partition(" ")[2]) is None
            }
            self._operations |= {name: tensor.operation for name, tensor in chosen.items()}
            return chosen

        return DoubleProgram(
            step_fn, self.features, layout=layout, cluster=cluster, seed=self.seed, xla=False
        )

    def _compare(self, key: str, wanted: Mapping[str, np.ndarray], found: Outputs) -> Compared:
        """Compares each processor's slice with its part of the tensor on one device."""
        kind, _, name = key.rpartition(" ")
        kind = kind or "output"  # A scalar summary has no kind.
        whole, shape = wanted[key], found.shapes[key]
        scale = self._largest_gradient() if kind == "gradient" else max(1.0, _largest(whole))
        error = 0.0
        for region, value in found.slices_of(key):
            error = max(error, _relative(_difference(value, whole[region]), scale))
        return Compared(kind, name, self._split(shape), error, scale)

    def _largest_gradient(self) -> float:
        return max(map(_largest, self._gradients.values()), default=0.0) or 1.0

    def _split(self, shape: upstream.Shape) -> str:
        """Formats a shape with the axes of the mesh that split it."""
        parts = []
        for dim in shape.dims:
            axis = self.layout.axis_of(dim.name)
            parts.append(f"{dim.name}={dim.size}{f'/{axis.name}' if axis else ''}")
        return f"[{', '.join(parts)}]"


def _gradients_and_masks(mesh: Mesh, outputs: _Tensors, gradients: _Tensors) -> _Tensors:
    """Returns the outputs, the variables' gradients, and random tensors made outside of loops."""
    chosen = {f"output {name}": tensor for name, tensor in outputs.items()}
    chosen |= {f"gradient {name}": tensor for name, tensor in gradients.items()}
    for op in live_operations(mesh.graph.operations, outputs.values()):
        if isinstance(op, (DropoutOperation, upstream.RandomOperation)):
            chosen[f"mask {op.name}"] = op.outputs[0]
    return chosen


def _all_tensors(mesh: Mesh, outputs: _Tensors, gradients: _Tensors) -> _Tensors:
    """Returns the tensors that the step computes outside of loops, in order."""
    operations = live_operations(mesh.graph.operations, outputs.values())
    return {
        f"tensor {tensor.name.removesuffix(':0')}": tensor
        for op in operations
        for tensor in op.outputs
    }


def _gradients(mesh: Mesh) -> _Tensors:
    """Returns the gradients that the step has taken, by the variable's name."""
    outside = set(mesh.graph.operations)
    found = {}
    for variable in mesh.graph.all_variables:
        gradient = mesh.context.gradients.get(variable.name)
        if gradient is not None and gradient.operation not in outside:
            gradient = _sum_of_loop(gradient, mesh)
        if gradient is not None:
            found[variable.name] = gradient
    return found


def _sum_of_loop(gradient: upstream.Tensor, mesh: Mesh) -> upstream.Tensor | None:
    """Returns the output of a loop that sums `gradient`, a tensor of its body; None if none."""
    for op in mesh.graph.operations:
        if isinstance(op, upstream.WhileLoopOperation):
            for total, part in zip(op.outputs, op._body_outputs, strict=False):
                cast = isinstance(part.operation, CastOperation)
                if gradient is (part.operation.inputs[0] if cast else part):
                    return total
    return None


def _perturb(program: DoubleProgram) -> None:
    """Adds noise to the weights; see `_NOISE`."""
    for variable in program.variables:
        if not variable.spec.trainable:
            continue
        random = np.random.default_rng(zlib.crc32(variable.spec.name.encode()))
        noise = _NOISE * random.normal(size=variable.spec.shape.to_integer_list)
        for pnum in variable.local_pnums:
            value, own = program.value_of(variable, pnum), noise[variable.region(pnum)]
            program.set_value(variable, pnum, value + padded(own, value.shape))


def _slot(name: str, trained: Sequence[str]) -> str:
    """Returns the kind of a slot: the slot's name without the weight's name; "" for weights."""
    of = [weight for weight in trained if name.startswith(weight)]
    return name[max(map(len, of)) :] if of else name


def _difference(value: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns absolute differences; 0 for equal infinities and for two NaNs."""
    value, wanted = (np.asarray(each, np.float64) for each in (value, wanted))
    same = (value == wanted) | (np.isnan(value) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(value - wanted))


def _relative(difference: np.ndarray, scale: float) -> float:
    """Returns the largest difference divided by `scale`; infinite if a difference is NaN."""
    largest = float(np.max(difference, initial=0.0)) / scale
    return np.inf if np.isnan(largest) else largest


def _largest(value: np.ndarray) -> float:
    """Returns the largest finite absolute value."""
    numbers = np.abs(np.asarray(value, np.float64))
    return float(np.max(numbers, initial=0.0, where=np.isfinite(numbers)))
