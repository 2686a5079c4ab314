"""Messages from one processor to another.

Messages are TensorFlow's `CollectiveBcastSendV2` and `CollectiveBcastRecvV2` in groups of two.
Unlike other collectives, they may be inside a condition that differs between processors. The stages
of a pipeline need this: they send only when a microbatch is ready.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from t2tp.mesh.carriers import carrier_of


@dataclass(frozen=True, eq=False)
class Wire:
    """A channel from each processor to one other processor, for one message at a time.

    Sender and receiver must both decide, in the same iteration of a loop, that there is a message.
    A send ends when the message has been received. A receive may begin long before the send. Sends
    and receives wait only for the operations that compute their inputs. `Collectives.wire` creates
    wires.

    Attributes:
      pnum: the processor's number, an int32 scalar.
      receivers: the processor that each processor sends to; None: it sends no message.
      pair_key: group key of the pair (0, 0); see `Collectives`.
      instance_key: instance key of all messages.
      hint: TensorFlow's name of the library that sends the messages.
      log: records a message of a shape and dtype.
    """

    pnum: tf.Tensor
    receivers: Sequence[int | None]
    pair_key: int
    instance_key: int
    hint: str
    log: Callable[[tf.TensorSpec], None]

    def send(self, x: tf.Tensor, shape: Sequence[int], when: tf.Tensor | None = None) -> tf.Tensor:
        """Sends `x` if the boolean scalar `when` is true (default: always).

        `shape` is the shape of `x`, which tracing may not know.

        Returns:
          whether there was a message. It is computed after the message has been received. A later
          operation must depend on it, or TensorFlow drops the send.
        """

        def send() -> tf.Tensor:
            sent = tf.raw_ops.CollectiveBcastSendV2(
                input=self._to_carrier(tf.reshape(x, shape)),
                group_size=2,
                group_key=self._pair(self.receivers, is_sender=True),
                instance_key=self.instance_key,
                communication_hint=self.hint,
            )
            with tf.control_dependencies([sent]):
                return tf.constant(True)

        self.log(tf.TensorSpec(list(shape), x.dtype))
        if when is None:
            return send()
        sent = tf.cond(when, send, lambda: tf.constant(False))
        _run_independently(sent)
        return sent

    def receive(
        self,
        shape: Sequence[int],
        dtype: tf.DType,
        when: tf.Tensor | None = None,
        otherwise: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the message if the boolean scalar `when` is true (default: always).

        Without a message, the result is `otherwise`, or by default a tensor without elements.
        """
        carrier = carrier_of(dtype)

        def receive() -> tf.Tensor:
            arrived = tf.raw_ops.CollectiveBcastRecvV2(
                group_size=2,
                group_key=self._pair(self.senders, is_sender=False),
                instance_key=self.instance_key,
                shape=list(shape),
                T=carrier,
                communication_hint=self.hint,
            )
            return arrived if carrier == dtype else tf.bitcast(arrived, dtype)

        if when is None:
            return receive()
        arrived = tf.cond(
            when, receive, lambda: tf.zeros([0], dtype) if otherwise is None else otherwise
        )
        _run_independently(arrived)
        return arrived

    @property
    def senders(self) -> list[int | None]:
        """The processor whose message each processor receives; None: it receives none."""
        of = {receiver: sender for sender, receiver in enumerate(self.receivers)}
        return [of.get(pnum) for pnum in range(len(self.receivers))]

    def _pair(self, others: Sequence[int | None], *, is_sender: bool) -> tf.Tensor:
        """Returns the group key of this processor and its partner."""
        this, count = self.pnum, len(others)
        other = tf.gather(tf.constant([each or 0 for each in others], tf.int32), this)
        first, second = (this, other) if is_sender else (other, this)
        return self.pair_key + first * count + second

    def _to_carrier(self, x: tf.Tensor) -> tf.Tensor:
        carrier = carrier_of(x.dtype)
        return x if carrier == x.dtype else tf.bitcast(x, carrier)


def _run_independently(result: tf.Tensor) -> None:
    """Lets TensorFlow run a condition at the same time as other operations with side effects.

    Automatic control dependencies would make the condition wait for all earlier collectives.
    """
    op = result.op
    while op.type not in ("If", "StatelessIf"):
        op = op.inputs[0].op
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(op)
