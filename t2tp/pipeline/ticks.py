"""The loop over the ticks of a schedule.

Each tick has three phases on every stage:

1. receives are posted, so that messages arrive while the stage computes;
2. the stage runs its entry of the schedule (`schedule.TickWork`): one branch of a `tf.switch_case`;
3. messages are sent, and messages that arrived are written into their slots.

All processors run one program, so the schedule is a constant table of numbers, and a processor
reads the row of its stage.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2tp.pipeline.branches import Branches, BranchState, Row
from t2tp.pipeline.messages import message_chunk

_ENTRY_COLUMNS = 4  # Branch, microbatch, slot of saved activations, slot of the arrived message.


class _State(NamedTuple):
    """The state between ticks.

    Attributes:
      branches: slots and sums.
      busy: seconds in which this processor ran its entries, float64.
    """

    tick: tf.Tensor
    branches: BranchState
    busy: tf.Tensor


class Ticks:
    """Lowers the loop over ticks."""

    def __init__(self, branches: Branches, axis: int, count: int) -> None:
        """Initializes the loop over `count` microbatches; `axis` is the mesh axis of the stages."""
        self._branches, self._axis, self._count = branches, axis, count
        self._schedule, self._wires = branches.schedule, branches.wires
        self._collectives = branches.mesh_impl.collectives

    def run(self) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns this processor's sums, and the idle share of each stage as a float32 vector.

        A processor measures only the idle share of its own stage (NaN on GPUs); other shares are 0.
        """
        table = tf.constant(self._table())
        state = _State(tf.constant(0), self._branches.start(), tf.constant(0.0, tf.float64))
        begin = self._clock()
        with tf.control_dependencies([begin]):
            state = state._replace(tick=tf.identity(state.tick))
        (state,) = tf.while_loop(
            lambda state: state.tick < self._schedule.ticks,
            lambda state: [self._tick(state, self._row(table, state.tick))],
            [state],
            parallel_iterations=1,
        )
        with tf.control_dependencies([state.tick]):
            seconds = self._clock() - begin
        share = tf.cast(1.0 - state.busy / tf.maximum(seconds, 1e-9), tf.float32)
        own = tf.one_hot(self._branches.stage, self._schedule.stages, dtype=tf.float32)
        return self._branches.sums.read(state.branches.sums, 0), share * own

    def _clock(self) -> tf.Tensor:
        """Reads the clock, in seconds; NaN on GPUs.

        On GPUs a kernel runs later than it is launched, and op determinism forbids clocks.
        """
        if self._branches.mesh_impl.target.on_cpu:
            return tf.timestamp()
        return tf.constant(math.nan, tf.float64)

    def _table(self) -> np.ndarray:
        """The schedule as int32 [ticks, stages, columns]: the fields of `Row`."""
        schedule, slots, names = self._schedule, self._wires.slots, list(self._wires.kinds)
        table = np.zeros([schedule.ticks, schedule.stages, _ENTRY_COLUMNS + 2 * len(names)], "i4")
        table[:, :, _ENTRY_COLUMNS::2] = -1
        tick_of = schedule.ticks_of()
        for tick, stage, entry in schedule.entries():
            layers = self._branches.partition.enters[entry.chunk].layers_by_stage[stage]
            saved = slots.saved.get((stage, entry.microbatch, entry.chunk), 0)
            # Slot 0 is for entries without a message.
            arrived = slots.arrived.get((stage, entry), -1) + 1
            branch = self._branches.numbers[entry.action, entry.chunk, layers]
            table[tick, stage, :_ENTRY_COLUMNS] = [branch, entry.microbatch, saved, arrived]
            sender = schedule.requirement(stage, entry)
            if sender is not None:
                name = self._wires.name(entry.action, message_chunk(sender[1], entry))
                column = _ENTRY_COLUMNS + 2 * names.index(name)
                table[tick_of[sender], stage, column] = arrived
                table[tick_of[sender], sender[0], column + 1] = 1
        return table

    def _row(self, table: tf.Tensor, tick: tf.Tensor) -> Row:
        branch, microbatch, saved, arrived, *wires = tf.unstack(table[tick, self._branches.stage])
        return Row(branch, microbatch, saved, arrived, wires[::2], wires[1::2])

    def _tick(self, state: _State, row: Row) -> _State:
        wires, received = {}, {}
        for slot, (name, kind) in zip(row.receives, self._wires.kinds.items(), strict=True):
            wires[name] = [
                self._collectives.wire(self._axis, self._wires.directions[name]) for _ in kind.parts
            ]
            received[name] = [
                wire.receive(shape, dtype, slot >= 0)
                for wire, (shape, dtype) in zip(wires[name], kind.parts, strict=True)
            ]
        with self._collectives.repeated(self._count):
            branches = self._branches.build(state.branches, row)
            # Without this dependency, a branch without side effects could begin before the clock is
            # read.
            begin = self._clock()
            with tf.control_dependencies([begin]):
                branch = tf.identity(row.branch)
            branch_state, messages = tf.switch_case(branch, branches)
            # A message may be ready before the branch ends, but the stage is still busy then.
            with tf.control_dependencies([x.op for x in tf.nest.flatten((branch_state, messages))]):
                seconds = self._clock() - begin
            busy = state.busy + tf.where(row.branch > 0, seconds, tf.zeros_like(seconds))
        slots, sends_done = dict(branch_state.slots), []
        for name, slot, sends in zip(wires, row.receives, row.sends, strict=True):
            # The communication report counts the messages of the processor that sends most, one for
            # each microbatch and chunk.
            with self._collectives.repeated(self._count * self._schedule.chunks):
                parts = zip(wires[name], self._wires.kinds[name].parts, messages[name], strict=True)
                sends_done += [
                    wire.send(message, shape, sends > 0) for wire, (shape, _), message in parts
                ]
            slots[name] = list(slots[name])
            # A tick without a message writes tensors without elements into slot 0.
            self._branches.tables[name].write(
                slots[name], tf.maximum(slot, 0), dict(enumerate(received[name]))
            )
        with tf.control_dependencies(sends_done):
            tick = state.tick + 1
        return _State(tick, branch_state._replace(slots=slots), busy)
