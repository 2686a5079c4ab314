"""The mesh on which a step is built, and what its builders know besides their arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from t2tp import upstream
from t2tp.building.adapters import Adapters
from t2tp.building.initial_values import FAN_IN, InitialValues
from t2tp.building.role import BALANCE, Role
from t2tp.building.transfer import SAME_SIZE, Growth, Transfer
from t2tp.lowering.mesh_impl import LaidOutTensor
from t2tp.mesh.layout import Layout


@dataclass(frozen=True)
class VariableDeclaration:
    """What the code that creates a variable says of it, besides its shape and dtype.

    Attributes:
      role: what each dimension is for; None: not declared.
      is_frozen: whether it is a weight that the optimizer does not change.
      growth: its numbers of inputs and outputs, divided by those in the model of `transfer_from`.
    """

    role: Role | None = None
    is_frozen: bool = False
    growth: Growth = SAME_SIZE


@dataclass(frozen=True)
class BuildContext:
    """What the builders of a graph know besides their arguments.

    The dictionaries belong to the graph: contexts that `Mesh.building` derives share them.

    Attributes:
      layout: the program's layout; None on a mesh of mesh-tensorflow's own.
      adapters: adapters of the layers that are being built; None: no layer has any.
      initial_values: the rule of the layers' initial values.
      transfer: the small model whose hyperparameters the layers use; None: no transfer.
      runs_schedule: whether operations that are built now will run in a pipeline's schedule.
      stage_scopes: the stages of a pipeline share one graph, in which one scope stands for a
        different layer on each stage. The dictionary maps this scope to the layer's own scope on
        each stage, or None on a stage without such a layer; see `names_by_stage`.
      declarations: the declarations of variables, by the variable's name.
      gradients: the last gradient that was taken of each variable, by the variable's name.
    """

    layout: Layout | None = None
    adapters: Adapters | None = None
    initial_values: InitialValues = FAN_IN
    transfer: Transfer | None = None
    runs_schedule: bool = False
    stage_scopes: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    declarations: dict[str, VariableDeclaration] = field(default_factory=dict)
    gradients: dict[str, upstream.Tensor | None] = field(default_factory=dict)

    def ratio(self, dim_name: str) -> float:
        """Returns a size divided by the small model's size; 1 without `transfer`."""
        return 1.0 if self.transfer is None else self.transfer.ratio(dim_name)


class Mesh(upstream.Mesh):
    """The mesh on which a step creates its tensors. It also provides the step's number.

    Attributes:
      layout: the program's layout.
      context: the `BuildContext` of the operations that are being built.
    """

    def __init__(self, graph: upstream.Graph, step: tf.Tensor, layout: Layout) -> None:
        super().__init__(graph, "mesh")
        self.layout = layout
        self.context = BuildContext(layout)
        self._step_tensor = step
        self._step: upstream.Tensor | None = None

    @property
    def step(self) -> upstream.Tensor:
        """The number of the step, from 0: an int64 scalar."""
        if self._step is None:
            self._step = upstream.import_laid_out_tensor(
                self, LaidOutTensor([self._step_tensor]), upstream.Shape([]), name="step"
            )
        return self._step

    @contextlib.contextmanager
    def building(self, **changes: Any) -> Iterator[BuildContext]:
        """Changes fields of the context for the operations that are built inside the `with`."""
        outer = self.context
        self.context = replace(outer, **changes)
        try:
            yield self.context
        finally:
            self.context = outer


def context_of(mesh: upstream.Mesh) -> BuildContext:
    """Returns a mesh's context; a mesh of mesh-tensorflow's own has a new one without settings."""
    return mesh.context if isinstance(mesh, Mesh) else BuildContext()


def declared(variable: upstream.Variable) -> VariableDeclaration:
    """Returns the declaration of a variable; without one, nothing is known of it."""
    return context_of(variable.mesh).declarations.get(variable.name, VariableDeclaration())


def is_balance(variable: upstream.Variable) -> bool:
    """Whether a variable balances experts.

    Its "gradient" is each expert's number of tokens. The variable is left out of the
    gradient norm and of clipping, the optimizer does not update it, and it has no average.
    """
    role = declared(variable).role
    return role is not None and role.kind == BALANCE


def names_by_stage(mesh: upstream.Mesh, name: str) -> tuple[str | None, ...] | None:
    """Returns the names of a layer's variable or operation on each stage.

    All stages share one graph, which has the layers of one stage. A variable's name in the graph is
    its name on the first stage: `layer_00/w`. On another stage its name is, for example,
    `layer_06/w`, or None if the stage has no such layer.

    Returns:
      the names by stage, or None if `name` belongs to no layer, or there are no stages.
    """
    for scope, names in context_of(mesh).stage_scopes.items():
        if name.startswith(f"{scope}/"):
            rest = name[len(scope) :]
            return tuple(None if own is None else own + rest for own in names)
    return None


def is_of_stage(variable: upstream.Variable) -> bool:
    """Whether each stage of a pipeline has a variable of its own under this name."""
    return names_by_stage(variable.mesh, variable.name) is not None


def count_of_stages(variable: upstream.Variable) -> int:
    """Returns how many stages have a variable of their own under this name; 0: it is shared."""
    return sum(name is not None for name in names_by_stage(variable.mesh, variable.name) or ())
