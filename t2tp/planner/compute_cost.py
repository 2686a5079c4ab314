"""Seconds of matmuls and memory-bound operations: a roofline model with tiles and waves.

S. Williams et al., "Roofline: an insightful visual performance model" (2009).
"""

import math

from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.curves import curve_for, seconds_at
from t2tp.step.work import (
    ATTENTION,
    ATTENTION_GRAD,
    COMPUTE_BOUND,
    CONVOLUTION,
    ELEMENTWISE,
    PRODUCT,
    Work,
)

# (rows, columns) of the tile of a result that one unit of the chip computes: the largest tiles of
# NVIDIA's library, and smaller tiles for results that would otherwise leave units idle.
_TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
# Speed of the tiles relative to the largest: smaller tiles load more bytes per FLOP.
_TILE_EFFICIENCY = (1.0, 0.97, 0.85, 0.7)

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
        if self._stack.curves:
            return self._measured(work)[0]
        if work.kind == PRODUCT:
            busy = self._product(work)
        elif work.kind in (ATTENTION, ATTENTION_GRAD):
            busy = self._attention(work)
        elif work.kind == CONVOLUTION:
            busy = work.flops / self._rate(work, self._stack.product)
        else:
            busy = self._move(work.num_bytes)
        # If devices share the cores of a host, the peak is the peak of all its cores, and each
        # device takes `_devices` times as long.
        return self._devices * busy + self._device.launch

    def spread(self, work: Work) -> float:
        """Returns the relative uncertainty of the seconds."""
        if self._stack.curves:
            return max(self._stack.spread, self._measured(work)[1])
        kernel = self._cluster.kernels.get(self._stack.attention)
        is_attention = work.kind in (ATTENTION, ATTENTION_GRAD)
        return kernel.spread if kernel is not None and is_attention else self._stack.spread

    def _measured(self, work: Work) -> tuple[float, float]:
        """Interpolates the measured curves; returns seconds, and their relative spread.

        A kind without a curve uses the curve of products or of element-wise operations. If there
        are more devices than cores, only as many devices as cores compute at the same time.
        """
        cores = self._device.cores or self._devices
        at_once = min(self._devices, cores)
        curves = self._stack.curves
        plain = PRODUCT if work.kind in COMPUTE_BOUND else ELEMENTWISE
        curve = curve_for(curves, work.kind, at_once) or curve_for(curves, plain, at_once)
        assert curve is not None, "cluster files with curves have these two"
        seconds, spread = seconds_at(curve.points, work.flops or work.num_bytes)
        return seconds * self._devices / at_once, spread

    def _move(self, num_bytes: float) -> float:
        """Returns the seconds of a memory-bound operation."""
        return num_bytes / (self._device.bandwidth * self._stack.memory)

    def _rate(self, work: Work, share: float) -> float:
        """Returns a share of the peak, in FLOP/s."""
        return share * self._cluster.peak(work.dtype)

    def _product(self, work: Work) -> float:
        batch, rows, columns, inner = work.sizes
        efficiency = self._stack.product * inner / (inner + self._stack.product_inner)
        best = max(
            tile_efficiency * _filled(batch, rows, columns, tile, self._device.units)
            for tile, tile_efficiency in zip(_TILES, _TILE_EFFICIENCY, strict=True)
        )
        return max(work.flops / self._rate(work, efficiency * best), self._move(work.num_bytes))

    def _attention(self, work: Work) -> float:
        stack = self._stack
        batch, queries, keys, head_size = work.sizes
        kernel = self._cluster.kernels.get(stack.attention)
        if kernel is not None:
            share = kernel.share(
                head_size, keys, is_forward=work.kind == ATTENTION, causal=work.causal
            )
            flops = work.flops / 2 if work.causal else work.flops
            return max(flops / self._rate(work, share), self._move(work.num_bytes))
        scores = batch * queries * keys * (4 if work.dtype == "float32" else 2)
        passes = _PASSES[work.kind] + (_DROPOUT_PASSES if work.dropout else 0)
        flops = work.flops
        if work.kind == ATTENTION_GRAD and not work.keeps_scores:
            # The backward pass repeats the first product and the softmax of the forward pass.
            passes += _PASSES[ATTENTION] + (_DROPOUT_PASSES if work.dropout else 0)
            flops *= 6 / 5
        return flops / self._rate(work, stack.batched) + self._move(passes * scores)


def _filled(batch: int, rows: int, columns: int, tile: tuple[int, int], units: int) -> float:
    """Returns the useful share of the chip's multiplications, for tiles of this size.

    Tiles extend beyond the edges of the result, and the last wave of tiles leaves units idle.
    """
    if units == 1:
        return 1.0
    tiles = batch * math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    in_tiles = batch * rows * columns / (tiles * tile[0] * tile[1])
    return in_tiles * tiles / (math.ceil(tiles / units) * units)
