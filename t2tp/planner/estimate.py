"""A quick estimate of a candidate, from one lowering of a row on one device.

It only decides which candidates are lowered; what a search reports comes from their own programs.
"""

from __future__ import annotations

from t2tp.hparam import HParams
from t2tp.mesh.layout import parse_mesh_shape
from t2tp.planner.candidates import Candidate
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.lowered import LoweredStep
from t2tp.planner.work import BACKWARD, COMPUTE_BOUND, FORWARD, UPDATE, Traffic

_WEIGHT, _SLOTS, _GRADIENT, _ACTIVATION = 4, 8, 4, 2


class Estimate:
    """Seconds and bytes of candidates."""

    def __init__(self, row: LoweredStep, hparams: HParams, cluster: ClusterFile) -> None:
        """Takes a lowered step.

        Args:
          row: of a batch of one row on one device, without recomputation.
          hparams: of the model.
          cluster: on which it is to run.
        """
        self._cluster = cluster
        self._parameters = row.parameters
        self._kept = row.layer_bytes["kept"]
        self._layers = hparams.get("num_hidden_layers") if "num_hidden_layers" in hparams else 1
        width = hparams.get("d_model") if "d_model" in hparams else 1
        self._stream = width * hparams.get("max_length") * _ACTIVATION
        cost = ComputeCost(cluster, 1)
        self._products = dict.fromkeys((FORWARD, BACKWARD, UPDATE), 0.0)
        self._others = dict.fromkeys((FORWARD, BACKWARD, UPDATE), 0.0)
        for work, number in row.work.items():
            kind = self._products if work.kind in COMPUTE_BOUND else self._others
            kind[work.phase] += number * work.times * cost.seconds(work)

    def seconds(self, candidate: Candidate, rows: int) -> float:
        """Estimates the seconds of a step of so many rows."""
        c = candidate
        own = rows / c.data
        again = 1 if c.recompute == "layer" else 0
        products = self._products[BACKWARD] + (1 + again) * self._products[FORWARD]
        others = self._others[BACKWARD] + (1 + again) * self._others[FORWARD]
        split = c.model if c.sequence_parallel else (1 + c.model) / 2
        # Small slices of matmuls reach less of the peak.
        seconds = own * (products / c.model * (1 + 0.02 * (c.model - 1)) + others / split)
        seconds += self._others[UPDATE] / c.model / (c.data if c.zero_stage else 1)
        return seconds + self._communication(c, own, again)

    def _communication(self, c: Candidate, own: float, again: int) -> float:
        mesh = f"data:{c.data};model:{c.model}"
        cost = CollectiveCost(self._cluster, parse_mesh_shape(mesh))
        weights = self._parameters / c.model
        micro = Traffic("allreduce", ("model",), FORWARD, 1, int(self._stream * own), False)
        exposed = 1 - self._cluster.software.overlap
        seconds = (4 + again) * self._layers * cost.seconds(micro)
        whole = int(weights * _GRADIENT)
        scatters = c.microbatches if c.zero_stage >= 2 else 1
        kind = "reducescatter" if c.zero_stage else "allreduce"
        seconds += (
            exposed * scatters * cost.seconds(Traffic(kind, ("data",), UPDATE, 1, whole, True))
        )
        gathers = {0: 0, 1: 1, 2: 1, 3: 2 * c.microbatches}[c.zero_stage]
        part = int(weights * _ACTIVATION / c.data)
        return seconds + exposed * gathers * cost.seconds(
            Traffic("allgather", ("data",), FORWARD, 1, part, True)
        )

    def memory(self, candidate: Candidate, rows: int) -> float:
        """Estimates the bytes of a device at the peak of a step."""
        c = candidate
        weights = self._parameters / c.model
        state = _SLOTS * weights / (c.data if c.zero_stage else 1)
        gradients = _GRADIENT * weights * (2 if c.microbatches > 1 else 1)
        gradients /= c.data if c.zero_stage >= 2 else 1
        own = weights * _WEIGHT / (c.data if c.zero_stage else 1)
        gathered = weights * _ACTIVATION / (self._layers if c.zero_stage == 3 else 1)
        micro = rows / c.data / c.microbatches
        kept = micro * self._kept / c.model
        if c.recompute == "layer":
            split = c.model if c.sequence_parallel else 1
            kept = kept / self._layers + micro * self._layers * self._stream / split
        reserved = self._cluster.device.reserved
        return state + gradients + own + gathered + kept + reserved
