"""Seconds of matmuls and of memory-bound operations: a roofline with tiles and waves.

S. Williams et al., "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import math
from bisect import bisect_left

from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.work import ATTENTION, ATTENTION_GRAD, CONVOLUTION, PRODUCT, Work

# Rows and columns of the part of a result that one unit of the chip computes: the largest tiles of
# NVIDIA's library, and the smaller ones for results that would leave units idle.
_TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
# Smaller tiles load more bytes per product; relative to the largest.
_TILE_EFFICIENCY = (1.0, 0.97, 0.85, 0.7)

# Times that unfused attention moves the scores through memory: a write by the first product,
# read and write by the softmax, a read by the second product. Backward: those of the two products
# for the weights' gradient, the softmax's two reads and a write, and two reads by the products.
_PASSES = {ATTENTION: 4.0, ATTENTION_GRAD: 6.0}
# Dropout reads, writes, and writes or reads a mask of half the bytes.
_DROPOUT_PASSES = 2.5


class ComputeCost:
    """The seconds of operations on one device of a cluster."""

    def __init__(self, cluster: ClusterFile, devices: int) -> None:
        """Prepares the model.

        Args:
          cluster: device and software.
          devices: number of devices in use; those that share a host get a part of it.
        """
        self._cluster = cluster
        self._stack = cluster.software
        self._device = cluster.device
        is_shared = self._device.shares_host
        self._sharing = min(devices, cluster.host_devices) if is_shared else 1

    def seconds(self, work: Work) -> float:
        """Returns the seconds of one execution."""
        if work.kind == PRODUCT:
            busy = self._product(work)
        elif work.kind in (ATTENTION, ATTENTION_GRAD):
            busy = self._attention(work)
        elif work.kind == CONVOLUTION:
            busy = work.flops / self._rate(work, self._stack.product)
        else:
            busy = self._move(work.num_bytes, work.kind)
        return self._sharing * busy + self._device.launch + self._stack.operation * work.operations

    def _move(self, num_bytes: float, kind: str = "") -> float:
        """Returns the seconds of a memory-bound operation."""
        rate = self._stack.rates.get(kind, self._device.bandwidth * self._stack.memory)
        return num_bytes / rate

    def _rate(self, work: Work, share: float) -> float:
        """Returns FLOP/s: measured for work of this size, or a share of the peak."""
        if kind_rate := self._stack.rates.get(work.kind):
            return kind_rate
        if self._stack.products:
            return _interpolated(self._stack.products, work.flops)
        return share * self._cluster.peak(work.dtype)

    def _product(self, work: Work) -> float:
        batch, rows, columns, inner = work.sizes
        if self._stack.products:
            return work.flops / self._rate(work, 1.0)
        efficiency = self._stack.product * inner / (inner + self._stack.product_inner)
        peak = self._cluster.peak(work.dtype)
        best = max(
            tile_efficiency * _filled(batch, rows, columns, tile, self._device.units)
            for tile, tile_efficiency in zip(_TILES, _TILE_EFFICIENCY, strict=True)
        )
        return max(work.flops / (peak * efficiency * best), self._move(work.num_bytes))

    def _attention(self, work: Work) -> float:
        stack = self._stack
        if work.kind in stack.rates:
            return work.flops / stack.rates[work.kind]
        if stack.attention == "fused":
            is_forward = work.kind == ATTENTION
            share = stack.attention_forward if is_forward else stack.attention_backward
            flops = work.flops / 2 if work.causal and stack.causal_skips else work.flops
            return max(flops / self._rate(work, share), self._move(work.num_bytes))
        batch, queries, keys, _ = work.sizes
        scores = batch * queries * keys * (4 if work.dtype == "float32" else 2)
        passes = _PASSES[work.kind] + (_DROPOUT_PASSES if work.dropout else 0)
        flops = work.flops
        if work.kind == ATTENTION_GRAD and not work.keeps_scores:
            # The forward pass once more, but for the second product's result.
            passes += _PASSES[ATTENTION] + (_DROPOUT_PASSES if work.dropout else 0)
            flops *= 6 / 5
        return flops / self._rate(work, stack.batched) + self._move(passes * scores)


def _filled(batch: int, rows: int, columns: int, tile: tuple[int, int], units: int) -> float:
    """Returns the share of the chip's products that count, for tiles of a size.

    Tiles reach over the edges of the result, and the last wave of tiles leaves units idle.
    """
    if units == 1:
        return 1.0
    tiles = batch * math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    in_tiles = batch * rows * columns / (tiles * tile[0] * tile[1])
    return in_tiles * tiles / (math.ceil(tiles / units) * units)


def _interpolated(points: tuple[tuple[float, float], ...], size: float) -> float:
    """Interpolates a rate between measured sizes, logarithmically; beyond them it is constant."""
    sizes = [at for at, _ in points]
    i = bisect_left(sizes, size)
    if i == 0:
        # Half the products take half the time only down to the smallest that was measured.
        return points[0][1]
    if i == len(points):
        return points[-1][1]
    (low, slow), (high, fast) = points[i - 1], points[i]
    share = math.log(size / low) / math.log(high / low)
    return slow * (fast / slow) ** share
