"""The branches of a tick.

In a tick, a stage runs one entry of the schedule. So a tick is one `tf.switch_case` with a branch
for each action, chunk and number of layers. Branch 0 does nothing. A branch reads and replaces
three things:

* slots, which hold tensors between ticks: messages that arrived, and activations saved for the
  backward pass;
* the sums of the loop's outputs over microbatches;
* the messages to send at the end of the tick.

The branches of one chunk, with the pieces of `Partition` in brackets:

    forward    first stage: features -> [before] -+
               others: message of stage - 1 ------+-> [layers] -+-> message to stage + 1
                                                                +-> slots `forward` (activations)
                                                                +-> slots `exit` (last stage)

    backward   last stage: slots `exit` -> [after] -+
               others: message of stage + 1 --------+-> [layers] -+-> message to stage - 1
               slots `forward` ---------------------+             +-> [before] (first stage), sums
                                                                  +-> slots `backward`, or sums

    weights    slots `forward` and `backward` -> [layers] -> sums

Without `weights` entries in the schedule, `backward` adds the gradients of the weights to the sums.
An evaluation has only `forward` entries, and the last stage also runs [after] in them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.fast_graph import fast_graph
from t2tp.lowering.lowering import all_operations
from t2tp.lowering.microbatch import Microbatch, elements_per_row, rows_of_microbatch
from t2tp.lowering.while_loop import tree_levels
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.pipeline.messages import MessageKind, Wires, message_kinds
from t2tp.pipeline.partition import ChunkPieces, GraphPiece, Partition
from t2tp.pipeline.schedule import Action, Schedule
from t2tp.pipeline.slot_table import SlotTable, SumTable


class Row(NamedTuple):
    """A stage's entry in a tick: int32 scalars.

    Attributes:
      saved: slot of the microbatch's saved activations.
      arrived: slot of the message that arrived for this entry; 0 if the entry needs none.
      receives: the slot, on each wire, for the message that arrives in this tick; -1: no message.
      sends: 1 for each wire on which the stage sends a message in this tick, otherwise 0.
    """

    branch: tf.Tensor
    microbatch: tf.Tensor
    saved: tf.Tensor
    arrived: tf.Tensor
    receives: list[tf.Tensor]
    sends: list[tf.Tensor]


class BranchState(NamedTuple):
    """The part of the loop's state that branches change: handles of slots and of sums."""

    slots: dict[str, list[tf.Tensor]]
    sums: list[tf.Tensor]


# A branch returns the state and the messages for each wire.
BranchResult = tuple[BranchState, dict[str, list[tf.Tensor]]]


class Branches:
    """Builds the branches of one loop.

    Attributes:
      saved: the tensors in each table of saved activations, by the table's name.
      tree_size: number of microbatches, if their addends are summed as a tree. 0: they are added in
        the order of the schedule.
      axes: the mesh axes over which each of the loop's sums is partial, by the sum's index.
      numbers: the index of each branch, by (action, chunk, number of layers).
      stage: this processor's stage, an int32 scalar.
    """

    def __init__(
        self,
        op: MicrobatchSums,
        partition: Partition,
        schedule: Schedule,
        lowering: Lowering,
        stage: tf.Tensor,
    ) -> None:
        self.op, self.partition, self.schedule, self.lowering = op, partition, schedule, lowering
        self.stage = stage
        self.mesh_impl = lowering.mesh_impl(op)
        chunks = range(schedule.chunks)
        layout = self.mesh_impl.layout
        self.wires = Wires(schedule, [message_kinds(partition.exit_of(c), layout) for c in chunks])
        outputs = op._body_outputs[1:]
        self.axes: dict[int, list[int]] = {}
        self.tree_size = op.count if layout.exact_sums else 0
        levels = tree_levels(self.tree_size)
        self.sums = SumTable(
            1,
            [self.mesh_impl.slice_shape(x.shape) for x in outputs] * levels,
            [x.dtype for x in outputs] * levels,
        )
        self.pieces = {
            (chunk, layers): partition.pieces(chunk, layers)
            for chunk in chunks
            for layers in dict.fromkeys(partition.enters[chunk].layers_by_stage)
        }
        actions = {entry.action for _, _, entry in schedule.entries()}
        keys = [(action, *key) for action in Action if action in actions for key in self.pieces]
        self.numbers = {key: 1 + i for i, key in enumerate(keys)}
        self._rows = rows_of_microbatch(op.microbatch_dim, layout)
        self._per_row = elements_per_row(op.microbatch_dim, all_operations(op._body_ops))
        # In a tick without a message, an empty tensor is written to slot 0, which is never read.
        self.tables = {
            name: SlotTable(1 + self.wires.num_slots[name], *zip(*kind.parts, strict=True))
            for name, kind in self.wires.kinds.items()
        }
        self.saved: dict[str, list[upstream.Tensor]] = {}
        for chunk in chunks:
            pieces = [pieces for (number, _), pieces in self.pieces.items() if number == chunk]
            self._add_table(f"forward{chunk}", chunk, *(p.saved_activations for p in pieces))
            self._add_table(f"backward{chunk}", chunk, *(p.saved_for_weights for p in pieces))
            # The first stage's backward pass recomputes the piece before the layers, so the piece's
            # inputs are saved.
            if chunk and pieces[0].before is not None and schedule.trains:
                self._add_table(f"before{chunk}", chunk, partition.exit_of(chunk - 1).outputs)
        self._add_table("exit", chunks[-1], partition.last_exit.outputs)

    def _add_table(self, name: str, chunk: int, *groups: Sequence[upstream.Tensor]) -> None:
        """Adds a table for the tensors of all `groups`; different stages save different groups."""
        tensors = list(dict.fromkeys(tensor for group in groups for tensor in group))
        kind = MessageKind.of_tensors(tensors, self.mesh_impl.layout)
        num_slots = self.wires.slots.num_saved[chunk] if tensors else 0
        self.saved[name] = tensors
        self.tables[name] = SlotTable(num_slots, kind.shapes, kind.dtypes)

    def start(self) -> BranchState:
        """Returns the state before the first tick."""
        slots = {name: table.empty() for name, table in self.tables.items()}
        return BranchState(slots, self.sums.empty())

    def build(self, state: BranchState, row: Row) -> list[Callable[[], BranchResult]]:
        """Returns the branches of a tick, in the order of their indices."""

        def branch(action: Action, chunk: int, layers: int) -> BranchResult:
            microbatch = Microbatch(row.microbatch, self.op.count, self._rows, self._per_row)
            lowering = self.lowering
            with fast_graph(), lowering.isolated(), lowering.inside_microbatch(microbatch):
                lowering.set_slice(self.op._body_inputs[0], row.microbatch)
                return _Branch(self, chunk, layers, state, row).run(action)

        return [
            lambda: (state, self.wires.no_messages()),
            *(lambda key=key: branch(*key) for key in self.numbers),
        ]


class _Branch:
    """One branch while it is traced. Its steps replace slots, sums and messages."""

    def __init__(
        self, branches: Branches, chunk: int, layers: int, state: BranchState, row: Row
    ) -> None:
        self._branches, self._lowering = branches, branches.lowering
        self._partition, self._wires = branches.partition, branches.wires
        self._chunk, self._row = chunk, row
        self._pieces: ChunkPieces = branches.pieces[chunk, layers]
        self._enter = self._partition.enters[chunk]
        self._exit = self._partition.exits[chunk][layers]
        self._is_last_chunk = chunk == branches.schedule.chunks - 1
        self._slots = {name: list(handles) for name, handles in state.slots.items()}
        self._sums = list(state.sums)
        self._messages = self._wires.no_messages()
        self._collectives = branches.mesh_impl.collectives
        self._is_first = tf.equal(branches.stage, 0)
        self._is_last = tf.equal(branches.stage, branches.schedule.stages - 1)

    def run(self, action: Action) -> BranchResult:
        """Lowers the work of an action; returns the state and the messages after it."""
        self._action = action
        self._boundary = self._enter if action is Action.FORWARD else self._exit.backward
        {
            Action.FORWARD: self._forward,
            Action.BACKWARD: self._backward,
            Action.WEIGHTS: self._weights,
        }[action]()
        return BranchState(self._slots, self._sums), self._messages

    def _forward(self) -> None:
        pieces, trains = self._pieces, self._branches.schedule.trains
        self._bind(self._enter.outputs, self._inputs_of_layers())
        results = self._lower(pieces.forward, pieces.saved_activations)
        if trains:
            self._save("forward", pieces.saved_activations)
        self._send(self._chunk, results)
        if self._is_last_chunk and trains:
            self._save_if(self._is_last, "exit", lambda: results)
        elif self._is_last_chunk:
            self._sums = tf.cond(
                self._is_last, lambda: self._loss(results), lambda: list(self._sums)
            )

    def _inputs_of_layers(self) -> list[tf.Tensor]:
        """Returns the inputs of the chunk's layers.

        The first stage computes them from the features or from the previous chunk's output. Other
        stages receive them.
        """
        before, chunk = self._pieces.before, self._chunk
        name = self._wires.name(Action.FORWARD, chunk)
        first_name = self._wires.name(Action.FORWARD, chunk - 1) if chunk else None

        def first(before: GraphPiece) -> list[tf.Tensor]:
            with fast_graph(), self._lowering.isolated():
                if chunk:
                    outputs = self._partition.exit_of(chunk - 1).outputs
                    self._bind(outputs, self._arrived(first_name))
                return self._lower(before)

        # Without a piece before the layers, the first stage reads the previous chunk's output just
        # as other stages read their inputs: from the same wire, with the same shapes.
        if before is None:
            inputs = self._arrived(first_name)
        else:
            table = f"before{chunk}"
            if table in self._branches.saved:
                self._save_if(self._is_first, table, lambda: self._arrived(first_name))
            inputs = tf.cond(self._is_first, lambda: first(before), lambda: self._arrived(name))
        self._free_arrived(first_name, name)
        return self._with_shapes(self._enter.outputs, inputs)

    def _loss(self, outputs: Sequence[tf.Tensor] | None = None) -> list[tf.Tensor]:
        """Runs the piece after the layers; returns the gradients of `outputs`, and the new sums.

        `outputs` are the outputs of the last chunk's layers, by default the saved ones. Without a
        backward pass, there are no gradients.
        """
        with fast_graph(), self._lowering.isolated():
            tensors = self._partition.last_exit.outputs
            if outputs is None:
                self._bind_saved("exit", tensors)
            else:
                self._bind(tensors, outputs)
            gradients = self._lower(self._partition.after)
            return [*gradients, *self._add(self._partition.after)]

    def _backward(self) -> None:
        pieces, exit_op = self._pieces, self._exit
        assert pieces.backward is not None and exit_op.backward is not None
        output_gradients = self._output_gradients()
        self._bind_saved("forward", pieces.saved_activations)
        self._bind(exit_op.backward.outputs, output_gradients)
        input_gradients = self._lower(pieces.backward, pieces.saved_for_weights)
        self._sums = self._add(pieces.backward)
        input_gradients = [tf.identity(x) for x in input_gradients]
        if pieces.before_backward is None:
            # Input gradients go to the previous stage. The first stage sends them to the last
            # stage, for the previous chunk.
            chunks = (self._chunk, self._chunk - 1)
            # Chunks whose messages have the same shapes share a wire, which sends one message.
            for chunk in {self._wires.name(self._action, c): c for c in chunks}.values():
                self._send(chunk, input_gradients)
        else:
            self._backward_before(pieces.before_backward, input_gradients)
        if pieces.weights is None:
            self._free("forward")
        else:
            self._save("backward", pieces.saved_for_weights)

    def _output_gradients(self) -> list[tf.Tensor]:
        """Returns the gradients of the chunk's outputs, from a message or from the loss."""
        name = self._wires.name(Action.BACKWARD, self._chunk)
        assert self._exit.backward is not None
        outputs = self._exit.backward.outputs
        if self._is_last_chunk:
            results = tf.cond(
                self._is_last, self._loss, lambda: [*self._arrived(name), *self._sums]
            )
            gradients, self._sums = results[: len(outputs)], results[len(outputs) :]
            self._free("exit")
        else:
            gradients = self._arrived(name)
        self._free_arrived(name, name)
        return self._with_shapes(outputs, gradients)

    def _backward_before(self, piece: GraphPiece, input_gradients: list[tf.Tensor]) -> None:
        """Runs the backward pass of the piece before the layers, on the first stage."""
        chunk = self._chunk
        before_name = self._wires.name(Action.BACKWARD, chunk - 1) if chunk else None
        self._send(chunk, input_gradients)

        def first() -> list[tf.Tensor]:
            with fast_graph(), self._lowering.isolated():
                if chunk:
                    self._bind_saved("before", self._partition.exit_of(chunk - 1).outputs)
                self._bind(self._enter.backward.outputs, input_gradients)  # type: ignore[union-attr]
                results = self._lower(piece)
                messages = self._packed(before_name, results) if before_name else []
                return [*self._add(piece), *messages]

        def others() -> list[tf.Tensor]:
            return [*self._sums, *(self._messages[before_name] if before_name else [])]

        count = len(self._sums)
        results = tf.cond(self._is_first, first, others)
        self._sums = results[:count]
        if before_name is not None:
            self._messages[before_name] = list(results[count:])
        if f"before{chunk}" in self._branches.saved:
            self._free("before")

    def _weights(self) -> None:
        pieces = self._pieces
        assert pieces.weights is not None  # The schedule splits the backward pass.
        self._bind_saved("forward", pieces.saved_activations)
        self._bind_saved("backward", pieces.saved_for_weights)
        self._lower(pieces.weights)
        self._sums = self._add(pieces.weights)
        self._free("forward")
        self._free("backward")

    # Graph tensors.

    def _bind(self, tensors: Sequence[upstream.Tensor], values: Sequence[tf.Tensor]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            self._lowering.set_slice(tensor, value)

    def _with_shapes(
        self, tensors: Sequence[upstream.Tensor], values: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the values with the static shapes of the slices, which tracing may lose."""
        shapes = [self._branches.mesh_impl.slice_shape(x.shape) for x in tensors]
        return [tf.ensure_shape(x, s) for x, s in zip(values, shapes, strict=True)]

    def _lower(self, piece: GraphPiece, also: Sequence[upstream.Tensor] = ()) -> list[tf.Tensor]:
        """Lowers a piece and the tensors in `also`; returns the slices of the piece's results."""
        addends = list(piece.contributions.values())
        self._lowering.lower_operations(
            piece.operations, [*piece.results, *also, *addends], addends
        )
        return [self._lowering.slice(t) for t in piece.results]

    def _add(self, piece: GraphPiece) -> list[tf.Tensor]:
        """Returns the sums plus the contributions of a piece that has been lowered.

        Sums of one dtype are in one TensorFlow list, so each addition waits for the previous
        addition. To wait as little as possible, contributions are added in the order in which they
        are computed.
        """
        sums, branches, lowering = list(self._sums), self._branches, self._lowering
        leaves: dict[int, tf.Tensor] = {}
        order = {op: i for i, op in enumerate(piece.operations)}
        contributions = sorted(
            piece.contributions.items(), key=lambda item: order.get(item[1].operation, -1)
        )
        for i, tensor in contributions:
            addend_of = lowering.tree_leaf if branches.tree_size else lowering.partial_sum
            value, axes = addend_of(tensor)
            addend = self._as_partial_sum(value, axes, branches.axes.setdefault(i, axes))
            if branches.tree_size:
                leaves[i] = addend
            else:
                branches.sums.add(sums, i, addend)
        if leaves:
            branches.sums.add_leaf(sums, leaves, self._row.microbatch, branches.tree_size)
        return sums

    def _as_partial_sum(self, value: tf.Tensor, axes: list[int], target: list[int]) -> tf.Tensor:
        """Turns a partial sum over some axes into a partial sum over the target axes."""
        collectives = self._branches.mesh_impl.collectives
        extra = [axis for axis in axes if axis not in target]
        if extra:
            value = collectives.allreduce(value, extra, "Add")
        for axis in target:
            if axis not in axes:
                # All processors along this axis have the whole value, so only the first processor
                # adds it.
                is_first = tf.equal(collectives.coordinate(axis), 0)
                value = tf.where(is_first, value, tf.zeros_like(value))
        return value

    # Slots.

    def _table(self, name: str) -> str:
        return name if name == "exit" else f"{name}{self._chunk}"

    def _write(self, name: str, values: dict[int, tf.Tensor]) -> None:
        self._branches.tables[name].write(self._slots[name], self._row.saved, values)

    def _save(self, name: str, tensors: Sequence[upstream.Tensor]) -> None:
        """Writes lowered tensors into this microbatch's slot."""
        union = self._branches.saved[self._table(name)]
        values = {union.index(t): self._lowering.slice(t) for t in tensors}
        self._write(self._table(name), values)

    def _save_if(
        self, condition: tf.Tensor, table: str, values: Callable[[], Sequence[tf.Tensor]]
    ) -> None:
        """Writes values into this microbatch's slot; other stages write empty tensors."""
        empty = [tf.zeros([0], x.dtype) for x in self._branches.saved[table]]
        written = tf.cond(condition, values, lambda: empty)
        self._write(table, dict(enumerate(written)))

    def _bind_saved(self, name: str, tensors: Sequence[upstream.Tensor]) -> None:
        """Reads tensors from this microbatch's slot."""
        name = self._table(name)
        numbers = [self._branches.saved[name].index(t) for t in tensors]
        table = self._branches.tables[name]
        self._bind(tensors, table.read(self._slots[name], self._row.saved, numbers))

    def _free(self, name: str) -> None:
        """Frees this microbatch's slot."""
        name = self._table(name)
        self._branches.tables[name].clear(self._slots[name], self._row.saved)

    def _send(self, chunk: int, tensors: Sequence[tf.Tensor]) -> None:
        """Sends tensors across the boundary after a chunk's layers, at the end of the tick."""
        name = self._wires.name(self._action, chunk)
        self._messages[name] = self._packed(name, tensors)

    def _packed(self, wire: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._wires.kinds[wire].pack(tensors, self._collectives)

    def _arrived(self, wire: str | None) -> list[tf.Tensor]:
        """Returns the tensors of the message that arrived for this entry."""
        assert wire is not None and self._boundary is not None
        messages = self._branches.tables[wire].read(self._slots[wire], self._row.arrived)
        with self._collectives.attributed_to(self._boundary.name):
            return self._wires.kinds[wire].unpack(messages, self._collectives)

    def _free_arrived(self, first_wire: str | None, wire: str | None) -> None:
        """Frees the slot of the message that arrived for this entry.

        The first stage reads the message from `first_wire`, and other stages read it from `wire`.
        """
        for name in {first_wire: None, wire: None}:
            if name is None:
                continue
            slot = self._row.arrived
            if {first_wire, wire} - {None, name}:
                # On the wire that the stage does not read, this slot may hold another message. On
                # that wire, slot 0 is cleared instead, which is never read.
                reads = self._is_first if name == first_wire else tf.logical_not(self._is_first)
                slot = tf.where(reads, slot, 0)
            self._branches.tables[name].clear(self._slots[name], slot)
