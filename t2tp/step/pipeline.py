"""The bytes that the stages of a pipeline save and send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t2tp import upstream
from t2tp.lowering.lowering import all_operations
from t2tp.mesh.layout import Layout
from t2tp.pipeline.loop import PipelineLoop
from t2tp.pipeline.messages import MessageKind
from t2tp.step.slices import slice_bytes


def pipeline_loop(operations: Iterable[upstream.Operation]) -> PipelineLoop | None:
    """Finds the loop of a program's pipeline; None if there is none."""
    loops = (op for op in all_operations(operations) if isinstance(op, PipelineLoop))
    return next(loops, None)


@dataclass(frozen=True)
class ChunkBytes:
    """The bytes of a microbatch by chunk of a stage.

    Attributes:
      kept: bytes of activations that a forward pass saves in the chunk's layers.
      results: bytes of the activations that the chunk's layers return.
      messages: bytes of these activations that a processor sends to the next stage.
    """

    kept: tuple[int, ...]
    results: tuple[int, ...]
    messages: tuple[int, ...]

    @classmethod
    def of_loop(cls, loop: PipelineLoop, layout: Layout) -> ChunkBytes:
        """Reads the sizes from a lowered loop."""

        def size(tensors: Sequence[upstream.Tensor]) -> int:
            return sum(slice_bytes(x, layout) for x in tensors)

        numbers = range(len(loop.partition.enters))
        pieces = [loop.partition.pieces(c, max(loop.partition.exits[c])) for c in numbers]
        crossing = [loop.partition.exit_of(c).outputs for c in numbers]
        return cls(
            tuple(size(piece.saved_activations) for piece in pieces),
            tuple(map(size, crossing)),
            tuple(MessageKind.of_tensors(outputs, layout).num_bytes for outputs in crossing),
        )
