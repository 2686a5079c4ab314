"""Runs a schedule: a loop over its ticks, in which each processor does its stage's entry.

The graph of one microbatch is lowered once, in pieces (`pipeline.partition`), each into a branch of
one condition on the entry. What a stage sends leaves at the end of a tick. What it receives may
arrive while it computes: receives are posted when the tick begins, and beside the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.lowering import Lowering, all_operations
from t2tp.lowering.microbatch import Microbatch, elements_per_row
from t2tp.lowering.shared_constants import shared_constants
from t2tp.lowering.while_loop import reduce_what_comes_from_outside
from t2tp.mesh.layout import LayoutError
from t2tp.ops.microbatch_sums import MicrobatchSums
from t2tp.pipeline.boundary import EnterStage
from t2tp.pipeline.messages import MessageKind
from t2tp.pipeline.partition import Partition, Piece
from t2tp.pipeline.schedule import Action, Schedule, ScheduleError
from t2tp.pipeline.schedules import forward_schedule, make_schedule
from t2tp.pipeline.slot_table import SlotTable
from t2tp.pipeline.slots import Slots, assign_slots, message_chunk
from t2tp.pipeline.sum_table import SumTable
from t2tp.program.program import Mesh

_DIRECTIONS = {Action.FORWARD: 1, Action.BACKWARD: -1}
_STAGES = "stages_of_pipeline"
_ENTRY_COLUMNS = 4  # Branch, microbatch, slot of what is kept, slot of what arrived.


class PipelineLoop(MicrobatchSums):
    """Sums the results of a function over microbatches; the layers of its graph are in stages.

    Outputs: those of `MicrobatchSums`, and the measured idle shares.

    Attributes:
      schedule: the table that is run.
      partition: the pieces of the graph.
      is_per_stage: whether each stage has its own sum, of each sum.
      idle_share: for each stage the share of the time in which it computed nothing, as measured: a
        float32 vector [stages_of_pipeline].
    """

    def __init__(
        self,
        sums_of: Callable[[upstream.Tensor], Any],
        count: int,
        part: upstream.Dimension,
        mesh: Mesh,
        is_per_stage: Callable[[Any], Any],
    ) -> None:
        """Builds the graph of a microbatch and cuts it into stages.

        Args:
          sums_of: maps the index of a microbatch (int32) to its addends.
          count: number of microbatches.
          part: the batch dimension of a microbatch.
          mesh: the program's mesh.
          is_per_stage: maps addends to booleans of the same structure: whether each stage has its
            own sum, as the gradients of its layers; otherwise stages contribute to one.

        Raises:
          LayoutError: the graph cannot be cut into stages, or there is no such schedule.
        """
        super().__init__(sums_of, count, part, mesh, name="pipeline")
        stages = upstream.Shape([upstream.Dimension(_STAGES, mesh.layout.num_stages)])
        self.idle_share = upstream.Tensor(self, stages, tf.float32, index=len(self._outputs))
        self._outputs.append(self.idle_share)
        self.is_per_stage: list[bool] = tf.nest.flatten(is_per_stage(self.addends))
        layout = mesh.layout
        name = layout.pipeline.schedule
        enters = [op for op in self._body_ops if isinstance(op, EnterStage)]
        chunks, trains = len(enters), any(op.backward is not None for op in enters)
        try:
            self.schedule: Schedule = (
                make_schedule(name, layout.num_stages, count, chunks)
                if trains
                else forward_schedule(layout.num_stages, count, chunks)
            )
        except ScheduleError as error:
            raise LayoutError(str(error)) from error
        self.partition = Partition(
            self._body_ops,
            self._body_outputs[1:],
            splits_backward=self.schedule.splits_backward,
        )

    def lower(self, lowering: Lowering) -> None:
        """Lowers the loop."""
        reduce_what_comes_from_outside(self, lowering)
        run = _Run(self, lowering)
        totals, axes = run.run()
        lowering.set_slice(self.outputs[0], tf.constant(self.count))
        mesh_axes = lowering.mesh_impl(self).layout.axes
        stages = mesh_axes.separate([_stage_axis(lowering, self)])
        for output, value, summed, own in zip(
            self.outputs[1:-1], totals, axes, self.is_per_stage, strict=True
        ):
            over = summed if own else sorted({*summed, *stages})
            lowering.set_sum_over_axes(output, value, over)
        lowering.set_sum_over_axes(self.idle_share, run.idle_share(), stages)


def _stage_axis(lowering: Lowering, op: upstream.Operation) -> int:
    axis = lowering.mesh_impl(op).layout.stage_axis
    if axis is None:
        raise LayoutError("a pipeline needs a mesh axis that splits the layers")
    return axis


class _State(NamedTuple):
    """The state between ticks: handles of `SlotTable`s, and of a `SumTable`.

    Attributes:
      tick: the index of the next one.
      arrived: by the name of a wire, what arrived and is not used yet.
      kept: for each chunk, what its backward passes need.
      ends: what the layers of the last chunk end with, on the last stage.
      before: for each chunk, what arrived at the first stage, if its layers begin with something
        computed from that.
      kept_for_weights: for each chunk, what the gradients of its weights need of the backward pass.
      totals: handles of the partial sums of the outputs.
      busy: seconds in which this processor did its entries, float64.
    """

    tick: tf.Tensor
    arrived: dict[str, list[tf.Tensor]]
    kept: list[list[tf.Tensor]]
    ends: list[tf.Tensor]
    before: list[list[tf.Tensor]]
    kept_for_weights: list[list[tf.Tensor]]
    totals: list[tf.Tensor]
    busy: tf.Tensor


class _Tables(NamedTuple):
    """The tables of what is in `_State` under the same name."""

    arrived: dict[str, SlotTable]
    kept: list[SlotTable]
    ends: SlotTable
    before: list[SlotTable]
    kept_for_weights: list[SlotTable]
    totals: SumTable


class _Row(NamedTuple):
    """A stage's entry in a tick: int32 scalars.

    Attributes:
      branch: which branch does it.
      microbatch: its index.
      kept: slot of what is kept.
      arrived: slot of what arrived.
      wires: for each wire, the slot for what arrives in this tick, or -1; and whether something is
        sent.
    """

    branch: tf.Tensor
    microbatch: tf.Tensor
    kept: tf.Tensor
    arrived: tf.Tensor
    wires: list[tuple[tf.Tensor, tf.Tensor]]


# What a branch returns: the state, without the tick, and the messages that it leaves for each wire.
_Left = tuple[_State, dict[str, list[tf.Tensor]]]


class _Run:
    """The lowering of one loop."""

    def __init__(self, op: PipelineLoop, lowering: Lowering) -> None:
        self._op = op
        self._lowering = lowering
        self._mesh_impl = lowering.mesh_impl(op)
        self._collectives = self._mesh_impl.collectives
        self._count = op.count
        self._partition = op.partition
        self._schedule = op.schedule
        self._axis = _stage_axis(lowering, op)
        self._stage = self._collectives.coordinate(self._axis)
        (rows,) = self._mesh_impl.slice_shape(upstream.Shape([op.part]))
        self._rows = rows
        self._per_row = elements_per_row(op.part, all_operations(op._body_ops))
        self._busy = self._seconds = tf.constant(0.0, tf.float64)
        self._axes: list[list[int] | None] = [None] * len(op.is_per_stage)
        self._kinds = [
            self._kind(self._partition.exit_of(chunk).outputs)
            for chunk in range(self._schedule.chunks)
        ]
        different = list(dict.fromkeys(self._kinds))
        self._kind_of = [different.index(kind) for kind in self._kinds]
        self._slots: Slots = assign_slots(self._schedule, self._kind_of)
        self._wires = {
            f"{action.value}{kind}": (action, kind)
            for action, kind in self._slots.num_arrived
            if self._slots.num_arrived[action, kind]
        }
        self._different = different
        enters = self._partition.enters
        self._pieces = {
            (chunk, layers): self._partition.pieces(chunk, layers)
            for chunk in range(self._schedule.chunks)
            for layers in dict.fromkeys(enters[chunk].layers_by_stage)
        }
        self._branches: dict[tuple[Action, int, int], int] = {}
        for action in Action:
            if any(e.action is action for _, _, e in self._schedule.entries()):
                for chunk, layers in self._pieces:
                    self._branches[action, chunk, layers] = 1 + len(self._branches)
        chunks = range(self._schedule.chunks)
        self._kept = [self._union(chunk, "kept") for chunk in chunks]
        self._kept_for_weights = [self._union(chunk, "kept_for_weights") for chunk in chunks]
        self._before = [self._before_tensors(chunk) for chunk in chunks]
        self._tables = _Tables(
            {
                name: self._arrived_table(1 + self._slots.num_arrived[key], different[key[1]])
                for name, key in self._wires.items()
            },
            [self._kept_table(chunk, self._kept[chunk]) for chunk in chunks],
            self._kept_table(chunks[-1], self._partition.last_exit.outputs),
            [self._kept_table(chunk, self._before[chunk]) for chunk in chunks],
            [self._kept_table(chunk, self._kept_for_weights[chunk]) for chunk in chunks],
            self._totals_table(),
        )

    def _union(self, chunk: int, what: str) -> list[upstream.Tensor]:
        """Returns what is kept of a chunk, whichever number of its layers a stage has."""
        found: dict[upstream.Tensor, None] = {}
        for (number, _), pieces in self._pieces.items():
            if number == chunk:
                found |= dict.fromkeys(getattr(pieces, what))
        return list(found)

    def _kind(self, tensors: Sequence[upstream.Tensor]) -> MessageKind:
        shapes = tuple(tuple(self._mesh_impl.slice_shape(x.shape)) for x in tensors)
        return MessageKind(shapes, tuple(x.dtype for x in tensors))

    def run(self) -> tuple[list[tf.Tensor], list[list[int]]]:
        """Returns the sums of this processor, and the axes over which each is a partial one."""
        table = tf.constant(self._table())
        start = self._start()

        def goes_on(state: _State) -> tf.Tensor:
            return state.tick < self._schedule.ticks

        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            start = start._replace(tick=tf.identity(start.tick))
        (last,) = tf.while_loop(
            goes_on,
            lambda state: [self._tick(state, self._row(table, state.tick))],
            [start],
            parallel_iterations=1,
        )
        with tf.control_dependencies([last.tick]):
            self._seconds = tf.timestamp() - begin
        self._busy = last.busy
        totals = self._tables.totals.values(last.totals)
        return totals, [axes or [] for axes in self._axes]

    def idle_share(self) -> tf.Tensor:
        """Returns this processor's part of the measured idle shares; call it after `run`."""
        share = tf.cast(1.0 - self._busy / tf.maximum(self._seconds, 1e-9), tf.float32)
        return share * tf.one_hot(self._stage, self._schedule.stages, dtype=tf.float32)

    # The table, as numbers.

    def _table(self) -> np.ndarray:
        """The schedule as int32 [ticks, stages, columns]; see `_Row`."""
        schedule, slots = self._schedule, self._slots
        columns = _ENTRY_COLUMNS + 2 * len(self._wires)
        table = np.zeros([schedule.ticks, schedule.stages, columns], np.int32)
        table[:, :, _ENTRY_COLUMNS::2] = -1
        at = schedule.ticks_of()
        names = list(self._wires)
        for tick, stage, entry in schedule.entries():
            layers = self._partition.enters[entry.chunk].layers_by_stage[stage]
            kept = slots.kept.get((stage, entry.microbatch, entry.chunk), 0)
            # The first slot is that of entries for which nothing arrives.
            arrived = slots.arrived.get((stage, entry), -1) + 1
            branch = self._branches[entry.action, entry.chunk, layers]
            table[tick, stage, :_ENTRY_COLUMNS] = [branch, entry.microbatch, kept, arrived]
            sender = schedule.requirement(stage, entry)
            if sender is not None:
                kind = self._kind_of[message_chunk(sender[1], entry)]
                column = _ENTRY_COLUMNS + 2 * names.index(f"{entry.action.value}{kind}")
                table[at[sender], stage, column] = arrived
                table[at[sender], sender[0], column + 1] = 1
        return table

    def _row(self, table: tf.Tensor, tick: tf.Tensor) -> _Row:
        branch, microbatch, kept, arrived, *wires = tf.unstack(table[tick, self._stage])
        pairs = [(wires[2 * i], wires[2 * i + 1]) for i in range(len(self._wires))]
        return _Row(branch, microbatch, kept, arrived, pairs)

    # A tick.

    def _start(self) -> _State:
        tables = self._tables
        return _State(
            tf.constant(0),
            {name: table.empty() for name, table in tables.arrived.items()},
            [table.empty() for table in tables.kept],
            tables.ends.empty(),
            [table.empty() for table in tables.before],
            [table.empty() for table in tables.kept_for_weights],
            tables.totals.zeros(),
            tf.constant(0.0, tf.float64),
        )

    @staticmethod
    def _arrived_table(num_slots: int, kind: MessageKind) -> SlotTable:
        parts = kind.parts
        return SlotTable(num_slots, [shape for shape, _ in parts], [dtype for _, dtype in parts])

    def _kept_table(self, chunk: int, tensors: Sequence[upstream.Tensor]) -> SlotTable:
        shapes = [self._mesh_impl.slice_shape(x.shape) for x in tensors]
        num_slots = self._slots.num_kept[chunk] if tensors else 0
        return SlotTable(num_slots, shapes, [x.dtype for x in tensors])

    def _totals_table(self) -> SumTable:
        outputs = self._op._body_outputs[1:]
        shapes = [self._mesh_impl.slice_shape(x.shape) for x in outputs]
        return SumTable(shapes, [x.dtype for x in outputs])

    def _before_tensors(self, chunk: int) -> list[upstream.Tensor]:
        """What arrives at the first stage and its backward pass needs again."""
        pieces = next(p for (number, _), p in self._pieces.items() if number == chunk)
        if not chunk or pieces.before is None or not self._schedule.trains:
            return []
        return self._partition.exit_of(chunk - 1).outputs

    def _tick(self, state: _State, row: _Row) -> _State:
        # Times and bytes of the wires: each processor sends this often, at most.
        times = self._count * self._schedule.chunks
        wires, received = {}, {}
        for (name, (action, kind)), (slot, _) in zip(self._wires.items(), row.wires, strict=True):
            wires[name] = [
                self._collectives.wire(self._axis, _DIRECTIONS[action])
                for _ in self._different[kind].parts
            ]
            received[name] = [
                wire.receive(shape, dtype, slot >= 0)
                for wire, (shape, dtype) in zip(
                    wires[name], self._different[kind].parts, strict=True
                )
            ]
        with self._collectives.repeated(self._count):
            branches = [self._idle(state)] + [
                self._branch(action, chunk, layers, state, row)
                for action, chunk, layers in self._branches
            ]
            # A branch without side effects might begin before the time is taken.
            begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                branch = tf.identity(row.branch)
            after, left = tf.switch_case(branch, branches)
            # Messages leave as soon as they are there; the stage is busy until all is.
            with tf.control_dependencies([x.op for x in tf.nest.flatten((after, left))]):
                taken = tf.timestamp() - begin
            busy = state.busy + tf.where(row.branch > 0, taken, tf.zeros_like(taken))
        arrived, sent = {}, []
        for (name, (_, kind)), (slot, sends) in zip(self._wires.items(), row.wires, strict=True):
            parts = self._different[kind].parts
            with self._collectives.repeated(times):
                for wire, (shape, _), message in zip(wires[name], parts, left[name], strict=True):
                    sent.append(wire.send(message, shape, sends > 0))
            arrived[name] = list(after.arrived[name])
            # Nothing arrives as tensors without elements, for the first slot.
            messages = dict(enumerate(received[name]))
            self._tables.arrived[name].write(arrived[name], tf.maximum(slot, 0), messages)
        with tf.control_dependencies(sent):
            tick = state.tick + 1
        return after._replace(tick=tick, arrived=arrived, busy=busy)

    # Branches.

    def _nothing(self) -> dict[str, list[tf.Tensor]]:
        """No message for any wire."""
        return {
            name: [tf.zeros([0], dtype) for _, dtype in self._different[kind].parts]
            for name, (_, kind) in self._wires.items()
        }

    def _idle(self, state: _State) -> Callable[[], _Left]:
        return lambda: (state, self._nothing())

    def _branch(
        self, action: Action, chunk: int, layers: int, state: _State, row: _Row
    ) -> Callable[[], _Left]:
        work = {
            Action.FORWARD: self._forward,
            Action.BACKWARD: self._backward,
            Action.WEIGHTS: self._weights,
        }[action]

        def branch() -> _Left:
            microbatch = Microbatch(row.microbatch, self._count, self._rows, self._per_row)
            lowering = self._lowering
            with shared_constants(), lowering.isolated(), lowering.inside_microbatch(microbatch):
                self._bind(self._op._body_inputs[:1], [row.microbatch])
                copied = tf.nest.map_structure(lambda x: x, state)
                return work(chunk, layers, copied, row)

        return branch

    def _forward(self, chunk: int, layers: int, state: _State, row: _Row) -> _Left:
        pieces, left = self._pieces[chunk, layers], self._nothing()
        entered, state = self._entered(chunk, pieces.before, state, row)
        self._bind(pieces.forward.given, entered)
        results = self._lower(pieces.forward, pieces.kept)
        if self._schedule.trains:
            self._keep(
                self._tables.kept[chunk], state.kept[chunk], self._kept[chunk], pieces.kept, row
            )
        name = self._wire_name(Action.FORWARD, chunk)
        if name is not None:
            left[name] = self._kinds[chunk].pack(results)
        if chunk == self._schedule.chunks - 1:
            if self._schedule.trains:
                self._keep_ends(state, results, row)
            else:
                state = self._evaluated(results, state)
        return state, left

    def _entered(
        self, chunk: int, before: Piece | None, state: _State, row: _Row
    ) -> tuple[list[tf.Tensor], _State]:
        """Returns the inputs of a chunk's layers: what arrived, or what comes before them."""
        name = self._wire_name(Action.FORWARD, chunk)
        first_name = self._wire_name(Action.FORWARD, chunk - 1) if chunk else None

        def arrived(wire: str | None, of: int) -> list[tf.Tensor]:
            if wire is None:
                raise ScheduleError(f"nothing arrives for chunk {chunk}")
            return self._kinds[of].unpack(self._read(state, wire, row))

        def first() -> list[tf.Tensor]:
            with shared_constants(), self._lowering.isolated():
                if before is None:
                    return arrived(first_name, chunk - 1)
                if chunk:
                    self._bind(before.given, arrived(first_name, chunk - 1))
                return self._lower(before)

        if chunk and before is None:  # The same kind of message on all stages.
            entered = arrived(first_name, chunk - 1)
        else:
            kept = self._before[chunk]
            if kept:
                messages = tf.cond(
                    self._is_first(),
                    lambda: arrived(first_name, chunk - 1),
                    lambda: [tf.zeros([0], x.dtype) for x in kept],
                )
                table = self._tables.before[chunk]
                table.write(state.before[chunk], row.kept, dict(enumerate(messages)))
            entered = tf.cond(self._is_first(), first, lambda: arrived(name, chunk))
        self._clear(state, [name, first_name], row)
        shapes = self._kind(self._partition.enters[chunk].outputs).shapes
        return [tf.ensure_shape(x, s) for x, s in zip(entered, shapes, strict=True)], state

    def _evaluated(self, results: list[tf.Tensor], state: _State) -> _State:
        """Adds what the last stage computes after the layers."""
        after = self._partition.after

        def last() -> list[tf.Tensor]:
            with shared_constants(), self._lowering.isolated():
                self._bind(self._partition.last_exit.outputs, results)
                self._lower(after)
                return self._added(after, state.totals)

        return state._replace(totals=tf.cond(self._is_last(), last, lambda: list(state.totals)))

    def _backward(self, chunk: int, layers: int, state: _State, row: _Row) -> _Left:
        pieces, left = self._pieces[chunk, layers], self._nothing()
        exit_op, enter = self._partition.exits[chunk][layers], self._partition.enters[chunk]
        backward = pieces.backward
        if backward is None or exit_op.backward is None or enter.backward is None:
            raise ScheduleError("an evaluation has no backward pass")
        dys, state = self._gradients_at_exit(chunk, state, row)
        self._bind_kept(
            self._tables.kept[chunk], state.kept[chunk], self._kept[chunk], pieces.kept, row
        )
        self._bind(exit_op.backward.outputs, dys)
        dxs = self._lower(backward, pieces.kept_for_weights)
        state = state._replace(totals=self._added(backward, state.totals))
        dxs = [tf.identity(dx) for dx in dxs]
        own_name = self._wire_name(Action.BACKWARD, chunk)
        if pieces.before_backward is None:
            # What leaves the layers goes to the stage before, or to the last one's chunk before.
            for name in {own_name, self._wire_name(Action.BACKWARD, chunk - 1) if chunk else None}:
                if name is not None:
                    left[name] = self._kinds[chunk].pack(dxs)
        else:
            state, left = self._backward_before(
                chunk, pieces.before_backward, dxs, state, row, left
            )
        if pieces.weights is None:
            self._clear_kept(state, chunk, row)
        else:
            self._keep(
                self._tables.kept_for_weights[chunk],
                state.kept_for_weights[chunk],
                self._kept_for_weights[chunk],
                pieces.kept_for_weights,
                row,
            )
        return state, left

    def _gradients_at_exit(
        self, chunk: int, state: _State, row: _Row
    ) -> tuple[list[tf.Tensor], _State]:
        """Returns the gradients w.r.t. a chunk's results: what arrived, or those of the loss."""
        name, kind = self._wire_name(Action.BACKWARD, chunk), self._kinds[chunk]
        after = self._partition.after

        def arrived() -> list[tf.Tensor]:
            return kind.unpack(self._read(state, name, row)) if name is not None else []

        def last() -> list[tf.Tensor]:
            with shared_constants(), self._lowering.isolated():
                ends = self._tables.ends.read_all(state.ends, row.kept)
                self._bind(self._partition.last_exit.outputs, ends)
                dys = self._lower(after)
                return [*dys, *self._added(after, state.totals)]

        if chunk < self._schedule.chunks - 1:
            dys = arrived()
        else:
            made = tf.cond(self._is_last(), last, lambda: [*arrived(), *state.totals])
            dys = made[: len(kind.shapes)]
            state = state._replace(totals=made[len(kind.shapes) :])
            self._tables.ends.clear(state.ends, row.kept)
        self._clear(state, [name], row)
        return [tf.ensure_shape(x, s) for x, s in zip(dys, kind.shapes, strict=True)], state

    def _backward_before(
        self,
        chunk: int,
        piece: Piece,
        dxs: list[tf.Tensor],
        state: _State,
        row: _Row,
        left: dict[str, list[tf.Tensor]],
    ) -> _Left:
        """Computes the backward pass of what comes before a chunk's layers, on the first stage."""
        enter = self._partition.enters[chunk]
        before_name = self._wire_name(Action.BACKWARD, chunk - 1) if chunk else None
        name = self._wire_name(Action.BACKWARD, chunk)
        table = self._tables.before[chunk]

        def first() -> list[tf.Tensor]:
            with shared_constants(), self._lowering.isolated():
                if chunk:
                    given = table.read_all(state.before[chunk], row.kept)
                    self._bind(self._partition.exit_of(chunk - 1).outputs, given)
                self._bind(enter.backward.outputs, dxs)  # type: ignore[union-attr]
                results = self._lower(piece)
                messages = self._kinds[chunk - 1].pack(results) if before_name else []
                return [*self._added(piece, state.totals), *messages]

        def others() -> list[tf.Tensor]:
            return [*state.totals, *(left[before_name] if before_name else [])]

        made = tf.cond(self._is_first(), first, others)
        count = len(state.totals)
        state = state._replace(totals=made[:count])
        messages = list(made[count:])
        others_messages = self._kinds[chunk].pack(dxs)
        if name is not None and name != before_name:
            left[name] = others_messages
        if before_name is not None:
            left[before_name] = messages
        if before_name is not None and name == before_name:
            left[before_name] = tf.cond(self._is_first(), lambda: messages, lambda: others_messages)
        if table.num_slots:
            table.clear(state.before[chunk], row.kept)
        return state, left

    def _weights(self, chunk: int, layers: int, state: _State, row: _Row) -> _Left:
        pieces = self._pieces[chunk, layers]
        if pieces.weights is None:
            raise ScheduleError("this graph's backward pass is not split")
        self._bind_kept(
            self._tables.kept[chunk], state.kept[chunk], self._kept[chunk], pieces.kept, row
        )
        self._bind_kept(
            self._tables.kept_for_weights[chunk],
            state.kept_for_weights[chunk],
            self._kept_for_weights[chunk],
            pieces.kept_for_weights,
            row,
        )
        self._lower(pieces.weights)
        state = state._replace(totals=self._added(pieces.weights, state.totals))
        self._clear_kept(state, chunk, row)
        self._tables.kept_for_weights[chunk].clear(state.kept_for_weights[chunk], row.kept)
        return state, self._nothing()

    # Steps of the branches.

    def _is_first(self) -> tf.Tensor:
        return tf.equal(self._stage, 0)

    def _is_last(self) -> tf.Tensor:
        return tf.equal(self._stage, self._schedule.stages - 1)

    def _wire_name(self, action: Action, chunk: int) -> str | None:
        """Returns the wire for what crosses the boundary after a chunk's layers."""
        name = f"{action.value}{self._kind_of[chunk]}"
        return name if name in self._wires else None

    def _bind(self, tensors: Sequence[upstream.Tensor], values: Sequence[tf.Tensor]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            self._lowering.set_slice(tensor, value)

    def _lower(self, piece: Piece, also: Sequence[upstream.Tensor] = ()) -> list[tf.Tensor]:
        """Lowers a piece; returns the slices of its results."""
        addends = list(piece.contributions.values())
        self._lowering.lower_operations(
            piece.operations, [*piece.results, *also, *addends], addends
        )
        return [self._lowering.slice(t) for t in piece.results]

    def _added(self, piece: Piece, totals: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums with a piece's contributions, in the order they are computed in."""
        added = list(totals)
        order = {op: i for i, op in enumerate(piece.operations)}
        contributions = sorted(
            piece.contributions.items(), key=lambda item: order.get(item[1].operation, -1)
        )
        for i, tensor in contributions:
            value, axes = self._lowering.partial_sum(tensor)
            known = self._axes[i]
            if known is None:
                self._axes[i] = known = list(axes)
            addend = self._as_partial_sum(value, list(axes), known)
            self._tables.totals.add(added, i, addend)
        return added

    def _as_partial_sum(self, value: tf.Tensor, over: list[int], wanted: list[int]) -> tf.Tensor:
        """Turns a partial sum over some axes into one over others."""
        extra = [axis for axis in over if axis not in wanted]
        if extra:
            value = self._collectives.allreduce(value, extra, "Add")
        for axis in wanted:
            if axis not in over:
                is_first = tf.equal(self._collectives.coordinate(axis), 0)
                value = tf.where(is_first, value, tf.zeros_like(value))
        return value

    def _keep(
        self,
        table: SlotTable,
        handles: list[tf.Tensor],
        union: Sequence[upstream.Tensor],
        kept: Sequence[upstream.Tensor],
        row: _Row,
    ) -> None:
        """Writes tensors that were lowered into this microbatch's slot."""
        values = {union.index(tensor): self._lowering.slice(tensor) for tensor in kept}
        table.write(handles, row.kept, values)

    def _bind_kept(
        self,
        table: SlotTable,
        handles: Sequence[tf.Tensor],
        union: Sequence[upstream.Tensor],
        kept: Sequence[upstream.Tensor],
        row: _Row,
    ) -> None:
        numbers = [union.index(tensor) for tensor in kept]
        self._bind(kept, table.read(handles, row.kept, numbers))

    def _keep_ends(self, state: _State, values: Sequence[tf.Tensor], row: _Row) -> None:
        """Writes what the layers end with, on the last stage."""

        def written() -> list[tf.Tensor]:
            handles = list(state.ends)
            self._tables.ends.write(handles, row.kept, dict(enumerate(values)))
            return handles

        state.ends[:] = tf.cond(
            self._is_last(), written, lambda: [tf.identity(x) for x in state.ends]
        )

    def _clear_kept(self, state: _State, chunk: int, row: _Row) -> None:
        self._tables.kept[chunk].clear(state.kept[chunk], row.kept)

    def _read(self, state: _State, wire: str, row: _Row) -> list[tf.Tensor]:
        """Returns the messages that arrived for this entry."""
        return self._tables.arrived[wire].read_all(state.arrived[wire], row.arrived)

    def _clear(self, state: _State, wires: Sequence[str | None], row: _Row) -> None:
        """Frees the slot of what arrived for this entry."""
        names = [name for name in dict.fromkeys(wires) if name is not None]
        for name in names:
            if len(names) == 1:
                self._tables.arrived[name].clear(state.arrived[name], row.arrived)
