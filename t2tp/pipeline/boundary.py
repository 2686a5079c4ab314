"""Where a stage's layers begin and end in a model's graph.

The graph has the layers of one stage, between `EnterStage` and `ExitStage`. The first stage
computes what comes before them, the last stage what comes after; the outputs of a stage's layers
are sent to the next stage, where they enter. These operations pass their inputs on, and so do those
of the backward pass. `pipeline.partition` cuts the graph at them.
"""

from __future__ import annotations

from collections.abc import Sequence

from t2tp import upstream
from t2tp.lowering.lowering import Lowering
from t2tp.lowering.operation import Operation


class Boundary(Operation):
    """Passes its inputs on, between two stages.

    Attributes:
      chunk: the index of the chunk of layers that begins or ends here.
      backward: the boundary that gradients pass; None: there are none, or it is one of these.
    """

    cost_kind = "free"
    accepts_padding = True

    def __init__(self, inputs: Sequence[upstream.Tensor], chunk: int, name: str) -> None:
        super().__init__(list(inputs), name=name)
        self.chunk = chunk
        self.backward: Boundary | None = None
        self._outputs = [
            upstream.Tensor(self, x.shape, x.dtype, index=i) for i, x in enumerate(inputs)
        ]

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor]:
        given = [
            upstream.zeros(y.mesh, y.shape, y.dtype) if dy is None else dy
            for y, dy in zip(self.outputs, grad_ys, strict=True)
        ]
        self.backward = Boundary(given, self.chunk, "backward")
        return self.backward.outputs

    def lower(self, lowering: Lowering) -> None:
        for x, y in zip(self.inputs, self.outputs, strict=True):
            lowering.set_tensor_lowering(y, lowering.tensors[x])


class EnterStage(Boundary):
    """Before the layers of a stage's chunk.

    Attributes:
      layers_by_stage: how many layers of the chunk each stage has.
    """

    layers_by_stage: list[int]


class ExitStage(Boundary):
    """After the layers of a stage's chunk; or after some of them, if other stages have fewer.

    Attributes:
      num_layers: of the chunk, up to here.
    """

    num_layers: int


def enter_stage(
    tensors: Sequence[upstream.Tensor], chunk: int, layers_by_stage: Sequence[int]
) -> list[upstream.Tensor]:
    """Begins the layers of a chunk with these tensors; returns them as the layers see them."""
    op = EnterStage(tensors, chunk, "enter_stage")
    op.layers_by_stage = list(layers_by_stage)
    return op.outputs


def exit_stage(
    tensors: Sequence[upstream.Tensor], chunk: int, num_layers: int
) -> list[upstream.Tensor]:
    """Ends the first `num_layers` layers of a chunk; returns the tensors as what follows sees."""
    op = ExitStage(tensors, chunk, "exit_stage")
    op.num_layers = num_layers
    return op.outputs


def chunk_number(graph: upstream.Graph) -> int:
    """Returns the index of the next chunk of layers; those of another stack may be before it."""
    return sum(isinstance(op, EnterStage) for op in graph.operations)
