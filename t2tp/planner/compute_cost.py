"""Seconds of matmuls and memory-bound operations: a roofline model.

S. Williams et al., "Roofline: an insightful visual performance model" (2009).
"""

from t2tp.planner.cluster_file import ClusterFile
from t2tp.step.work import ATTENTION, ATTENTION_GRAD, CONVOLUTION, COPY, PRODUCT, UPDATE, Work

# Number of times that unfused attention moves the scores through memory. Forward: the first product
# writes them, the softmax reads and writes them, the second product reads them. Backward: the
# products read the weights once, and write and read gradients; the softmax reads the weights and
# their gradients, and writes the gradients of the scores.
_PASSES = {ATTENTION: 4.0, ATTENTION_GRAD: 6.0}
# Dropout reads and writes the scores, and writes or reads a mask of half their bytes.
_DROPOUT_PASSES = 2.5


class ComputeCost:
    """The seconds of operations on one device of a cluster."""

    def __init__(self, cluster: ClusterFile, devices: int) -> None:
        """Prepares the model for a number of devices, which may share the peak of a host."""
        self._cluster = cluster
        self._stack = cluster.software
        self._device = cluster.device
        self._devices = cluster.sharing(devices)

    def seconds(self, work: Work) -> float:
        """Returns the seconds of one execution."""
        measured = self._stack.shares.get(work.kind)
        if measured is not None:
            busy = work.flops / self._rate(work, measured)
            busy = busy or work.num_bytes / (self._device.bandwidth * measured)
        elif work.kind in (PRODUCT, CONVOLUTION):
            flops = work.flops / self._rate(work, self._stack.product)
            loads = self._move(work.num_bytes, self._stack.stream)
            # Measured on an H200, t2tp's matmuls load while they compute. In published steps of
            # other libraries, small matmuls are slower, by about the time of their loads.
            busy = max(flops, loads) if self._stack.own else flops + loads
        elif work.kind in (ATTENTION, ATTENTION_GRAD):
            busy = self._attention(work)
        else:
            streams = work.phase == UPDATE or work.kind == COPY
            share = self._stack.stream if streams else self._stack.memory
            busy = self._move(work.num_bytes, share)
        # If devices share the cores of a host, the peak is the peak of all its cores, and each
        # device takes `_devices` times as long. Where `host` is measured, it includes the time
        # between two operations.
        return self._devices * busy + (0.0 if self._stack.host else self._device.launch)

    def _move(self, num_bytes: float, share: float) -> float:
        """Returns the seconds of moving bytes."""
        return num_bytes / (self._device.bandwidth * share)

    def _rate(self, work: Work, share: float) -> float:
        """Returns a share of the peak, in FLOP/s."""
        return share * self._cluster.peak(work.dtype)

    def _attention(self, work: Work) -> float:
        stack = self._stack
        batch, queries, keys, head_size = work.sizes
        kernel = self._cluster.kernels.get(stack.attention)
        if kernel is not None:
            share = kernel.share(
                head_size, keys, is_forward=work.kind == ATTENTION, causal=work.causal
            )
            flops = work.flops / 2 if work.causal else work.flops
            return flops / self._rate(work, share)
        scores = batch * queries * keys * (4 if work.dtype == "float32" else 2)
        passes = _PASSES[work.kind] + (_DROPOUT_PASSES if work.dropout else 0)
        flops = work.flops
        if work.kind == ATTENTION_GRAD and not work.keeps_scores:
            # The backward pass repeats the first product and the softmax of the forward pass.
            passes += _PASSES[ATTENTION] + (_DROPOUT_PASSES if work.dropout else 0)
            flops *= 6 / 5
        return flops / self._rate(work, stack.batched) + self._move(passes * scores, stack.memory)
