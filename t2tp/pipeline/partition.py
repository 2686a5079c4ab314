"""Cuts the graph of a microbatch into pieces; an entry of a schedule runs one or more of them.

The graph computes a loss and its gradients. All stages run the same program on different weights,
so the graph has the layers of only one stage, between two boundaries. The rest of the model is
before the first boundary and after the second. With several chunks, each chunk has its own layers
and boundaries. For one chunk the pieces are:

    before           features -> embedding                              first stage
    forward          layer inputs -> layer outputs, saved activations   all stages
    after            layer outputs -> loss, output gradients            last stage
    backward         output gradients, saved activations -> input gradients, weight gradients
    weights          the weight gradients, if the schedule splits the backward pass
    before_backward  input gradients -> embedding gradients             first stage

A piece begins at tensors that another stage sent or the forward pass saved. Tensors that depend on
no boundary, such as masks and positions, belong to no piece: each piece computes the masks and
positions that it reads.

Several pieces may use one variable, such as a tied embedding. Each piece computes its own addend of
the variable's gradient, and the loop adds them up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from t2tp import upstream
from t2tp.lowering.lowering import has_effect, tensors_read
from t2tp.mesh.layout import LayoutError
from t2tp.ops.recompute import Copies
from t2tp.pipeline.boundary import Boundary, EnterStage, ExitStage


@dataclass(frozen=True)
class GraphPiece:
    """A part of the graph.

    Attributes:
      results: tensors that another piece or another stage reads.
      contributions: the piece's addends of the loop's sums over microbatches, by the sum's index.
    """

    operations: list[upstream.Operation]
    results: list[upstream.Tensor]
    contributions: dict[int, upstream.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkPieces:
    """The pieces of a chunk of layers.

    Attributes:
      before: operations between the previous chunk (or the features) and the layers, on the first
        stage; None: there are none.
      forward: the layers.
      saved_activations: tensors of `forward` that `backward` or `weights` reads.
      before_backward: backward pass of `before`; None: there is none.
      backward: backward pass of the layers, without weight gradients if `weights` has them.
      weights: gradients of the weights; None: `backward` has them.
      saved_for_weights: tensors of `backward` that `weights` reads.
    """

    before: GraphPiece | None
    forward: GraphPiece
    saved_activations: list[upstream.Tensor]
    before_backward: GraphPiece | None = None
    backward: GraphPiece | None = None
    weights: GraphPiece | None = None
    saved_for_weights: list[upstream.Tensor] = field(default_factory=list)


class Partition:
    """The pieces of a graph.

    Attributes:
      enters: the boundary before the layers of each chunk.
      exits: the boundary after the layers of each chunk, by the number of these layers. A chunk has
        several such boundaries if stages have different numbers of layers.
      last_exit: the last boundary of the forward pass.
      after: the loss, and its gradients w.r.t. the outputs of the layers; on the last stage.
    """

    def __init__(
        self,
        operations: Sequence[upstream.Operation],
        outputs: Sequence[upstream.Tensor],
        *,
        splits_backward: bool,
    ) -> None:
        """Finds the boundaries among the operations of the loop's body.

        `outputs` are summed over microbatches. With `splits_backward`, the schedule has separate
        entries for the gradients of weights.

        Raises:
          LayoutError: there are no boundaries, or an operation assigns a variable.
        """
        self._operations = list(operations)
        self._outputs = list(outputs)
        self._splits_backward = splits_backward
        for op in operations:
            if isinstance(op, upstream.Assign) or (
                isinstance(op, upstream.WhileLoopOperation) and has_effect(op)
            ):
                raise LayoutError(
                    f"Operation {op.name!r} assigns a variable in the forward pass, which a"
                    " pipeline cannot do: drop the layout rule of the layers."
                )
        self.enters = [op for op in operations if isinstance(op, EnterStage)]
        self.exits: list[dict[int, ExitStage]] = [{} for _ in self.enters]
        for op in operations:
            if isinstance(op, ExitStage):
                self.exits[op.chunk][op.num_layers] = op
        if not self.enters:
            raise LayoutError(
                "The layout splits the layers, and this model has no stack of layers to split"
                " (t2tp.layers.stack.Stack): drop the rule."
            )
        # Maps each boundary of the backward pass, and the last exit, to the tensors that depend on
        # it, up to the next boundaries. The map shows to which piece an addend of a sum belongs.
        self._of: dict[Boundary, set[upstream.Tensor]] = {}
        self.last_exit = self.exit_of(-1)
        roots: list[tuple[Boundary | None, int, int | None]] = [(self.last_exit, -1, None)]
        for chunk, enter in enumerate(self.enters):
            roots += [(op.backward, chunk, layers) for layers, op in self.exits[chunk].items()]
            roots.append((enter.backward, chunk, None))
        for root, chunk, layers in roots:
            if root is not None:
                self._of[root] = self._reached(root.outputs, self._boundaries(chunk, layers))
        self.after = self._after()

    def exit_of(self, chunk: int) -> ExitStage:
        """Returns the boundary after all layers of a chunk."""
        return self.exits[chunk][max(self.exits[chunk])]

    def places(self, number: int) -> list[tuple[int, int]]:
        """Returns the (chunk, stage) that computes each addend of a sum over microbatches.

        `number` is the index of the sum. If the layers of a chunk add to the sum, the sum has an
        addend for each stage. The list is empty if several pieces add to the sum.
        """
        last = len(self.enters) - 1, len(self.enters[-1].layers_by_stage) - 1
        found = [[last] if number in self.after.contributions else []]
        for chunk, enter in enumerate(self.enters):
            exits = [self.exits[chunk][layers].backward for layers in enter.layers_by_stage]
            for roots in ([enter.backward], exits):
                adds = [root and self._outputs[number] in self._of[root] for root in roots]
                found.append([(chunk, stage) for stage, yes in enumerate(adds) if yes])
        places = [x for x in found if x]
        return places[0] if len(places) == 1 else []

    def pieces(self, chunk: int, num_layers: int) -> ChunkPieces:
        """Returns the pieces of the first `num_layers` layers of a chunk."""
        enter, exit_op = self.enters[chunk], self.exits[chunk][num_layers]
        boundaries = self._boundaries(chunk, num_layers)
        before = self._before(chunk)
        layers, _ = self._live(exit_op.inputs, enter.outputs, boundaries)
        # `inside` has the tensors that may be saved. Other tensors of the layers, such as masks,
        # depend on no boundary: the backward pass computes them again.
        from_enter = self._reached(enter.outputs, boundaries)
        inside = {t for op in layers for t in op.outputs if t in from_enter} | set(enter.outputs)
        if exit_op.backward is None or enter.backward is None:  # An evaluation.
            return ChunkPieces(before, GraphPiece(layers, exit_op.inputs), [])
        root = exit_op.backward
        dys, dxs, contributions = root.outputs, enter.backward.inputs, self._contributions(root)
        in_backward = {} if self._splits_backward else contributions
        backward, kept = self._piece(dxs, in_backward, {*dys, *inside}, boundaries, root)
        weights: GraphPiece | None = None
        saved_for_weights: list[upstream.Tensor] = []
        if self._splits_backward:
            # Tensors of `backward` that are saved if `weights` reads them.
            from_exit = self._reached([*dys, *enter.outputs], boundaries)
            computed = {t for op in backward.operations for t in op.outputs if t in from_exit}
            stops = {*dys, *inside, *computed}
            weights, read = self._piece([], contributions, stops, boundaries, root)
            saved_for_weights = [t for t in read if t in computed or t in dys]
            kept = list(dict.fromkeys([*kept, *(t for t in read if t in inside)]))
        kept = [t for t in kept if t in inside]
        # The forward piece also computes saved tensors that only the backward pass reads.
        forward, _ = self._live([*exit_op.inputs, *kept], enter.outputs, boundaries)
        return ChunkPieces(
            before,
            GraphPiece(forward, exit_op.inputs),
            kept,
            self._before_backward(chunk),
            backward,
            weights,
            saved_for_weights,
        )

    def _before(self, chunk: int) -> GraphPiece | None:
        enter = self.enters[chunk]
        given = self.exit_of(chunk - 1).outputs if chunk else []
        if enter.inputs == given:  # The previous chunk's outputs enter unchanged.
            return None
        operations, _ = self._live(enter.inputs, given, self._boundaries(chunk - 1))
        return GraphPiece(operations, enter.inputs)

    def _before_backward(self, chunk: int) -> GraphPiece | None:
        backward = self.enters[chunk].backward
        if backward is None or (chunk and self._before(chunk) is None):
            return None
        results: list[upstream.Tensor] = []
        given: list[upstream.Tensor] = []
        if chunk:
            # The piece also computes the gradients w.r.t. the previous chunk's outputs.
            before = self.exit_of(chunk - 1)
            given = before.outputs
            results = before.backward.inputs if before.backward else []
        contributions = self._contributions(backward)
        stops = {*given, *backward.outputs}
        piece, _ = self._piece(results, contributions, stops, self._boundaries(chunk), backward)
        return piece

    def _after(self) -> GraphPiece:
        last = self.last_exit
        # This piece also adds to the sums that depend on no boundary, such as the number of tokens.
        claimed = set().union(*(of for root, of in self._of.items() if root is not last))
        contributions = {
            i: t for i, t in enumerate(self._outputs) if t in self._of[last] or t not in claimed
        }
        results = last.backward.inputs if last.backward else []
        piece, _ = self._piece(results, contributions, last.outputs, self._boundaries(-1), last)
        return piece

    def _contributions(self, root: Boundary) -> dict[int, upstream.Tensor]:
        return {i: t for i, t in enumerate(self._outputs) if t in self._of[root]}

    def _boundaries(self, chunk: int, num_layers: int | None = None) -> set[upstream.Operation]:
        """Returns the boundaries at which pieces of the first `num_layers` layers of a chunk end.

        The chunk's exits after fewer layers are not among them: the pieces go on after these exits.
        """
        last = max(self.exits[chunk]) if num_layers is None else num_layers
        inner = [op for layers, op in self.exits[chunk].items() if layers < last]
        passed = {*inner, *(op.backward for op in inner)}
        return {op for op in self._operations if isinstance(op, Boundary) and op not in passed}

    def _reached(
        self, roots: Iterable[upstream.Tensor], boundaries: set[upstream.Operation]
    ) -> set[upstream.Tensor]:
        """Returns the tensors that depend on the roots, up to the next boundaries."""
        reached = set(roots)
        for op in self._operations:
            if op not in boundaries and any(t in reached for t in tensors_read(op)):
                reached.update(op.outputs)
        return reached

    def _live(
        self,
        needed: Sequence[upstream.Tensor],
        given: Iterable[upstream.Tensor],
        boundaries: set[upstream.Operation],
        root: Boundary | None = None,
    ) -> tuple[list[upstream.Operation], list[upstream.Tensor]]:
        """Returns the operations that compute `needed`, and the tensors of `given` that they read.

        The operations before `given` are left out. In a sum with one addend for each piece, only
        the addend that depends on the boundary `root` is kept (None: all addends are kept).

        Raises:
          LayoutError: a needed tensor is computed before one of `boundaries`, by another stage.
        """
        stops = set(given)
        wanted = set(needed)
        live = []
        for op in reversed(self._operations):
            if not any(t in wanted and t not in stops for t in op.outputs):
                continue
            if op in boundaries:
                raise LayoutError(
                    f"The layers of a stage use {op.inputs[0].name.removesuffix(':0')!r} of another"
                    " stage, and only results of a layer go from stage to stage."
                )
            live.append(op)
            read = self._read(op, root)
            wanted.update(read)
            # A one-hot tensor is not saved, but computed again from its ids, which are smaller.
            stops.difference_update(
                t for t in read if isinstance(t.operation, upstream.ops.OneHotOperation)
            )
            if isinstance(op, upstream.GenericGradOperation):
                # TensorFlow computes this gradient from the forward operation, which must be in the
                # same TensorFlow graph. The piece therefore includes the forward operation.
                stops.difference_update(op._forward_op.outputs)
                wanted.update(op._forward_op.outputs)
        inputs = (stops & wanted).difference(*(op.outputs for op in live))
        # In the order of the graph, which is the same in all processes.
        return live[::-1], [t for op in self._operations for t in op.outputs if t in inputs]

    def _read(self, op: upstream.Operation, root: Boundary | None) -> list[upstream.Tensor]:
        """Returns the tensors an operation reads, without the addends of other pieces."""
        read = tensors_read(op)
        if root is None or not isinstance(op, upstream.AddOperation):
            return read
        own = self._of[root]
        others = [of for other, of in self._of.items() if other is not root]
        kept = [t for t in read if t in own or not any(t in of for of in others)]
        # If all addends seem to belong to other pieces, this is not a sum with one addend for each
        # piece. The operation then reads all of its addends.
        return kept or read

    def _piece(
        self,
        results: Sequence[upstream.Tensor],
        contributions: Mapping[int, upstream.Tensor],
        given: Iterable[upstream.Tensor],
        boundaries: set[upstream.Operation],
        root: Boundary,
    ) -> tuple[GraphPiece, list[upstream.Tensor]]:
        """Makes a piece without the other pieces' addends; see `_live`.

        The remaining addend takes the place of the sum. The operations after the sum are copied, so
        that the copies read this addend.

        Returns:
          the piece, and the tensors of `given` that it reads.
        """
        needed = [*results, *contributions.values()]
        operations, read = self._live(needed, given, boundaries, root)
        copies = Copies({}, None)
        changed: set[upstream.Tensor] = set()
        made = []
        for op in operations:
            inputs = self._read(op, root)
            if len(inputs) < len(tensors_read(op)):
                copies.replace(op.outputs[0], inputs[0])
                changed.update(op.outputs)
            elif any(t in changed for t in inputs):
                made.append(copies.copy(op))
                op.graph.operations.pop()  # Only this piece has the copy, not the graph.
                changed.update(op.outputs)
            else:
                made.append(op)
        addends = {i: copies.of_tensor(t) for i, t in contributions.items()}
        return GraphPiece(made, [copies.of_tensor(t) for t in results], addends), read
