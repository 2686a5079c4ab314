"""Softmax cross-entropy that never gathers the logits of a split vocabulary."""

import math

import tensorflow as tf

from t2tp import upstream
from t2tp.lowering.context import Lowering
from t2tp.lowering.exact_sums import in_vectors
from t2tp.lowering.operation import GradientOperation, Operation
from t2tp.lowering.signature import Signature
from t2tp.ops.cross_entropy.sliced_softmax import LossOptions, SlicedSoftmax


def softmax_cross_entropy(
    logits: upstream.Tensor,
    targets: upstream.Tensor,
    vocab_dim: upstream.Dimension,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> upstream.Tensor:
    """Computes the negative log-likelihood of the targets under `softmax(logits)`.

    If the vocabulary is split over the mesh, three numbers per token are all-reduced instead of the
    logits: first the maximum, then the sum of exponentials and the target's logit in one collective
    (M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3). Label smoothing adds the sum of
    the logits to the second collective. Only the logits are saved for the gradient.

    Args:
      logits: [..., vocab], any float dtype; converted to float32.
      targets: [...], integers in [0, vocab).
      vocab_dim: the dimension of the classes.
      z_loss: factor of an additional loss `log(Z)**2`, where Z is the sum of exponentials. It keeps
        the logits from drifting: A. Chowdhery et al., "PaLM" (arXiv:2204.02311), section 5, use
        1e-4.
      label_smoothing: the probability distributed equally over all *other* classes (C. Szegedy et
        al., arXiv:1512.00567, section 7). As in tensor2tensor, the entropy of the smoothed target
        is subtracted, so that the minimal loss is 0.

    Returns:
      float32 [...], in nats; NaN for a target that is not a class.

    Raises:
      ValueError: the dimensions of the targets are not those of the logits except `vocab_dim`;
        z_loss is negative; label_smoothing is not in [0, 1), or is above 0 with only one class.
    """
    batch = logits.shape - vocab_dim
    if logits.shape.dims[-1] != vocab_dim:
        logits = upstream.transpose(logits, batch + vocab_dim)
    if targets.shape != batch:
        raise ValueError(f"Targets {targets.shape} do not have the dimensions of logits {batch}.")
    options = LossOptions(z_loss, label_smoothing)
    options.check(vocab_dim)
    return CrossEntropyOperation(logits, targets, options).outputs[0]


class CrossEntropyOperation(Operation):
    """Computes the cross-entropy.

    Inputs: logits [..., vocab] and targets [...]. Outputs: the loss [...] and log(Z) [...],
      float32.
    """

    def __init__(
        self, logits: upstream.Tensor, targets: upstream.Tensor, options: LossOptions
    ) -> None:
        super().__init__([logits, targets], name="cross_entropy")
        self._options = options
        vocab = logits.shape.dims[-1:]  # `SlicedSoftmax` combines the classes.
        self.signature = Signature(
            combined=vocab,
            ordered=vocab,
            exact=vocab,
            pads=True,
            any_slice=True,
            cost="cross_entropy",
        )
        self.set_outputs(*[(targets.shape, tf.float32)] * 2)

    def gradient(self, grad_ys: list[upstream.Tensor | None]) -> list[upstream.Tensor | None]:
        inputs = [*self.inputs, self.outputs[1], grad_ys[0]]
        grad = CrossEntropyGradOperation("cross_entropy_grad", self, inputs, self.inputs[0])
        return [grad.outputs[0], None]

    def lower(self, lowering: Lowering) -> None:
        logits, targets = (lowering.slice(x) for x in self.inputs)
        softmax = _softmax(self.inputs[0], lowering, self._options)
        losses = softmax.losses(*_flat(lowering, self, logits, targets))
        for output, value in zip(self.outputs, (losses.loss, losses.log_z), strict=True):
            lowering.set_slice(output, tf.reshape(_first(value, targets), targets.shape))


class CrossEntropyGradOperation(GradientOperation):
    """Computes the gradient of the cross-entropy.

    Inputs: logits [..., vocab], targets, log(Z) and the gradient w.r.t. the loss [...]. Output: the
      gradient w.r.t. the logits.
    """

    def lower(self, lowering: Lowering) -> None:
        logits, targets, log_z, d_loss = (lowering.slice(x) for x in self.inputs)
        softmax = _softmax(self.inputs[0], lowering, self.forward._options)
        rows = _flat(lowering, self, logits, targets, log_z, tf.cast(d_loss, tf.float32))
        d_logits = _first(softmax.gradient(*rows), targets)
        lowering.set_slice(self.outputs[0], tf.reshape(d_logits, logits.shape))


def _softmax(logits: upstream.Tensor, lowering: Lowering, options: LossOptions) -> SlicedSoftmax:
    return SlicedSoftmax(lowering, lowering.mesh_impl(logits), logits.shape.dims[-1], options)


def _flat(
    lowering: Lowering, op: Operation, logits: tf.Tensor, targets: tf.Tensor, *others: tf.Tensor
) -> list[tf.Tensor]:
    """Reshapes to logits [tokens, classes], targets (int32 [tokens]) and `others` [tokens].

    With `exact_sums`, rows of zeros are appended, so that the total number of rows is a multiple of
    a SIMD vector's size.
    """
    flat = [tf.reshape(logits, [-1, logits.shape[-1]])]
    flat += [tf.reshape(x, [-1]) for x in (tf.cast(targets, tf.int32), *others)]
    return [in_vectors(x) for x in flat] if lowering.mesh_impl(op).layout.exact_sums else flat


def _first(rows: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Removes the rows that `_flat` has appended to [tokens, ...]."""
    count = math.prod(targets.shape)
    return rows if rows.shape[0] == count else rows[:count]
