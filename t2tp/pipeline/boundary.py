"""Where a stage's layers begin and end in a model's graph.

The graph has the layers of one stage, between `EnterStage` and `ExitStage`:

    embedding -> EnterStage -> layers -> ExitStage -> logits, loss

The first stage computes the operations before the layers, and the last stage the operations after
them. The outputs of a stage's layers are sent to the layers of the next stage. Boundaries are
identities, forward and backward, at which `pipeline.partition` cuts the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature


class Boundary(Operation):
    """An identity that marks a boundary between two stages.

    Attributes:
      chunk: the index of the chunk of layers that begins or ends here.
      learned: number of inputs, the first ones, that have gradients.
      backward: the boundary in the backward pass. None: there is no backward pass, or this boundary
        belongs to the backward pass.
    """

    signature = Signature(ordered=ALL, pads=True, any_slice=True, cost="free")

    def __init__(
        self, inputs: Sequence[upstream.Tensor], chunk: int, name: str, learned: int
    ) -> None:
        super().__init__(list(inputs), name=name)
        self.chunk, self.learned = chunk, learned
        self.backward: Boundary | None = None
        self.set_outputs(*inputs)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        pairs = itertools.islice(zip(self.outputs, grad_ys, strict=True), self.learned)
        given = [upstream.zeros(y.mesh, y.shape, y.dtype) if dy is None else dy for y, dy in pairs]
        self.backward = Boundary(given, self.chunk, "backward", self.learned)
        return [*self.backward.outputs, *(None for _ in self.outputs[self.learned :])]

    def lower(self, lowering: Lowering) -> None:
        for x, y in zip(self.inputs, self.outputs, strict=True):
            lowering.set_tensor_lowering(y, lowering.tensors[x])


class EnterStage(Boundary):
    """The boundary before the layers of a chunk. All stages share the chunk's graph.

    Attributes:
      layers_by_stage: number of layers that each stage has in its chunk of this index.
    """

    layers_by_stage: list[int]


class ExitStage(Boundary):
    """A boundary after layers of a chunk.

    All stages share the chunk's graph. For stages with fewer layers than others, it has a boundary
    after their last layer, too.

    Attributes:
      num_layers: number of the chunk's layers before this boundary.
    """

    num_layers: int


def enter_stage(
    tensors: Sequence[upstream.Tensor], chunk: int, layers_by_stage: Sequence[int], learned: int
) -> list[upstream.Tensor]:
    """Begins the layers of a chunk; returns the tensors that the layers read.

    Only the first `learned` tensors have gradients.
    """
    op = EnterStage(tensors, chunk, "enter_stage", learned)
    op.layers_by_stage = list(layers_by_stage)
    return op.outputs


def exit_stage(
    tensors: Sequence[upstream.Tensor], chunk: int, num_layers: int, learned: int
) -> list[upstream.Tensor]:
    """Ends the first `num_layers` layers of a chunk; returns the tensors after the boundary.

    Only the first `learned` tensors have gradients.
    """
    op = ExitStage(tensors, chunk, "exit_stage", learned)
    op.num_layers = num_layers
    return op.outputs


def chunk_number(graph: upstream.Graph) -> int:
    """Returns the index of the next chunk of layers, counted over all stacks of the graph."""
    return sum(isinstance(op, EnterStage) for op in graph.operations)
