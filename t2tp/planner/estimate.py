"""A quick estimate of a candidate's cost, from two steps that are lowered on one device.

A search uses estimates only to choose the candidates that it lowers. It reports plans of lowered
programs.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

from t2tp import upstream
from t2tp.hparam import HParams
from t2tp.lowering.deferred_sums import BUCKET
from t2tp.mesh.dimensions import EXPERTS
from t2tp.mesh.layout import Layout
from t2tp.mesh.layout_text import parse_mesh_shape
from t2tp.mesh.storage import Storage
from t2tp.pipeline.schedules import pipeline_schedule
from t2tp.planner.candidates import Candidate
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.depth import depths
from t2tp.step.lowered import LoweredStep
from t2tp.step.work import (
    BACKWARD,
    COMPUTE_BOUND,
    COPY,
    ELEMENTWISE,
    FORWARD,
    PHASES,
    PRODUCT,
    UPDATE,
    Traffic,
    Work,
)

_WEIGHT = _GRADIENT = 4  # Bytes.
# The two classes of work: bound by the memory's bandwidth (False), bound by FLOPs (True).
_BOUND = (False, True)
# Fraction of a layer's saved activations that is outside attention and feed-forward network (inputs
# of norms, dropout masks): 10 of 34 bytes of each element (arXiv:2205.05198, table 2). Tensor
# parallelism splits these activations only with sequence parallelism.
_BETWEEN = 10 / 34
# With sequence parallelism: number of matmul inputs that are gathered in each layer.
_GATHERED = 2


class Estimate:
    """Seconds and bytes of candidates."""

    def __init__(
        self, row: LoweredStep, one_layer: LoweredStep, hparams: HParams, cluster: ClusterFile
    ) -> None:
        """Reads steps of a batch of one row on one device, without recomputation.

        `row` is a step of the whole model. `one_layer` is a step with one layer in each stack.
        """
        self._cluster = cluster
        self._layers = max(depths(hparams).values(), default=1)
        # The two steps differ by `layers - 1` layers. This factor scales the difference to all
        # layers.
        more = self._layers / (self._layers - 1) if self._layers > 1 else 0.0
        self.shapes, self._parameters = row.shapes, row.parameters
        # Bytes of optimizer state for each weight, and of one element of an activation.
        self._slots = row.variables["optimizer"] / row.parameters
        self._activation = 4 if hparams.activation_dtype == "float32" else 2
        # Shape -> number of the layers' variables of this shape.
        self._in_layers = {
            dims: more * (number - one_layer.shapes[dims]) for dims, number in row.shapes.items()
        }
        self._matrices = sum(number for dims, number in row.shapes.items() if len(dims) > 1)
        # Bytes that a row saves for the backward pass: in all layers, and outside them (in the
        # loss).
        whole_kept, one_kept = (step.layer_bytes["kept"] for step in (row, one_layer))
        self._kept = more * (whole_kept - one_kept) if more else whole_kept
        self._kept_outside = max(0.0, whole_kept - self._kept)
        width = hparams.get("d_model") if "d_model" in hparams else 1
        vocab = max((d.size for dims in row.shapes for d in dims if d.name == "vocab"), default=0)
        # Bytes of one row: float32 copies of the logits, and the activations between two layers.
        copies = cluster.software.float32_logits
        self._logits = _WEIGHT * copies * vocab * hparams.get("max_length")
        self._stream = width * hparams.get("max_length") * self._activation
        # Bytes that a row dispatches to experts: the inputs of the products of all experts.
        experts = {d.size for dims in row.shapes for d in dims if d.name == EXPERTS}
        forward = [w.sizes for w in row.work if w.kind == PRODUCT and w.phase == FORWARD]
        tokens = [math.prod(sizes[:2]) for sizes in forward if sizes[0] in experts]
        self._dispatched = max(tokens, default=0) * width * self._activation
        self._expert_layers = self._layers / hparams.get("moe_every") if experts else 0.0
        self._launch = cluster.software.host * row.arguments / cluster.steps_per_launch
        # Seconds of a weight's addition to the sum of the microbatches' gradients. It is computed
        # from 10^9 weights, so that the launch of the operation does not count.
        additions = Work(ELEMENTWISE, BACKWARD, 1, "float32", 0.0, 3e9 * _GRADIENT)
        self._addition = ComputeCost(cluster, 1).seconds(additions) / 1e9
        # Seconds of one row: in all layers, and outside them.
        whole, one = self._costs(row.work), self._costs(one_layer.work)
        self._inside = {key: more * (whole[key] - one[key]) for key in whole}
        self._outside = {key: max(0.0, whole[key] - self._inside[key]) for key in whole}
        self._mesh = functools.cache(
            lambda mesh_shape: CollectiveCost(cluster, parse_mesh_shape(mesh_shape))
        )
        self._collective = functools.cache(self._of_collective)
        self._of_row = functools.cache(self._of_pass)
        self._weights = functools.cache(self._count_weights)

    def _costs(self, works: Mapping[Work, float]) -> dict[tuple[str, bool], float]:
        """Returns the seconds of each phase, separately for the two classes of work."""
        cost = ComputeCost(self._cluster, 1)
        seconds = dict.fromkeys(itertools.product(PHASES, _BOUND), 0.0)
        for work, number in works.items():
            # Copies count as updates: weights are cast once a step, for any number of rows.
            phase = UPDATE if work.kind == COPY else work.phase
            key = phase, work.kind in COMPUTE_BOUND
            seconds[key] += number * work.times * cost.seconds(work)
        return seconds

    def _of_collective(self, mesh_shape: str, *traffic: Any) -> float:
        return self._mesh(mesh_shape).seconds(Traffic(*traffic))

    def seconds(self, candidate: Candidate, rows: int) -> float:
        """Estimates the seconds of a step of a batch of `rows`."""
        c = candidate
        micro = rows / c.data / c.microbatches  # Rows of a processor in a microbatch.
        share = self._share_of_stage(c)
        inside, outside = self._of_row(c.model, c.sequence_parallel, c.recompute == "layer")
        stage = micro * share * inside
        between = self._between_layers(c, micro) + self._to_experts(c, micro)
        stage += share * between + self._messages(c, micro)
        if c.microbatches > 1:
            stage += self._addition * self._local_weights(c, at_rest=c.zero_stage >= 2)
        # The last stage also computes the loss, for which the other stages wait.
        busiest = stage + micro * outside
        # Idle time, in units of a stage's time for one microbatch; see the idle shares in
        # docs/pipeline.md.
        splits_backward = pipeline_schedule(c.schedule).splits_backward
        waiting = (c.stages - 1) / (3 if splits_backward else c.chunks)
        local = self._local_weights(c, at_rest=True) / self._parameters
        # Muon orthogonalizes whole matrices, and distributes them over the processors of a stage.
        dealt = share / max(1.0, min(c.data * c.model, share * self._matrices))
        moved, products = (self._inside[UPDATE, b] + self._outside[UPDATE, b] for b in _BOUND)
        update = local * moved + dealt * products
        reductions = c.microbatches if c.zero_stage >= 2 else 1
        exposed = self._of_weights(c, busiest * reductions)
        return c.microbatches * busiest + waiting * stage + update + exposed + self._launch

    def _share_of_stage(self, c: Candidate) -> float:
        """Returns the largest stage's number of layers, as a fraction of all layers."""
        each, left = divmod(self._layers, c.stages * c.chunks)
        return (each * c.chunks + math.ceil(left / c.stages)) / self._layers

    def _of_pass(
        self, model: int, sequence_parallel: bool, recomputes: bool
    ) -> tuple[float, float]:
        """Returns the seconds of a row's forward and backward passes, in layers and outside."""
        # The number by which tensor parallelism divides memory-bound work. Without sequence
        # parallelism, it divides some of this work by `model`, and each processor repeats the rest
        # (norms and dropout). The mean of `model` and 1 is a rough estimate.
        split = model if sequence_parallel else (1 + model) / 2

        def seconds(of: Mapping[tuple[str, bool], float], forward: int) -> float:
            products = of[BACKWARD, True] + forward * of[FORWARD, True]
            others = of[BACKWARD, False] + forward * of[FORWARD, False]
            # Smaller matmuls reach a smaller share of the peak.
            return products / model * (1 + 0.02 * (model - 1)) + others / split

        return seconds(self._inside, 2 if recomputes else 1), seconds(self._outside, 1)

    def _between_layers(self, c: Candidate, micro: float) -> float:
        """Returns the seconds of a microbatch's tensor-parallel collectives, in all layers."""
        if c.model == 1:
            return 0.0
        gathers_again = c.sequence_parallel and self._cluster.software.gathers_again
        # Two all-reduces in a layer's forward pass, and two in its backward pass. Recomputation
        # repeats one of them. Gathering two inputs again takes the time of one all-reduce.
        again = (c.recompute == "layer") + gathers_again
        return (4 + again) * self._layers * self._sent(c, "allreduce", self._stream * micro)

    def _to_experts(self, c: Candidate, micro: float) -> float:
        """Returns the seconds of a microbatch's all-to-alls to and from experts, in all layers."""
        # Each pass of a layer sends tokens to the experts, and their results back.
        passes = 3 if c.recompute == "layer" else 2
        sent = self._sent(c, "alltoall", self._dispatched * micro, "expert")
        return 2 * passes * self._expert_layers * sent

    def _messages(self, c: Candidate, micro: float) -> float:
        """Returns the seconds of a microbatch's messages from and to a stage."""
        if c.stages == 1:
            return 0.0
        return 2 * c.chunks * self._sent(c, "permute", self._stream * micro / c.model, "stage")

    def _of_weights(self, c: Candidate, busy: float) -> float:
        """Returns the exposed seconds of the collectives of gradients and weights.

        The collectives can overlap with `busy` seconds of computation.
        """
        weights, part = self._local_weights(c), self._local_weights(c, at_rest=True)
        # If no weight has a dimension that can be sharded, the collectives are as in ZeRO stage 0.
        stage = c.zero_stage if part < weights else 0
        scatters = c.microbatches if stage >= 2 else 1
        gathers = {0: 0, 1: 1, 2: 1, 3: 2 * c.microbatches}[stage]
        # Large matrices have a collective each, and small ones share buckets. Each collective after
        # the first adds its latency.
        matrices = self._share_of_stage(c) * self._matrices
        others = max(0.0, min(matrices, weights * _GRADIENT / BUCKET) - 1)

        def sent(kind: str, num_bytes: float) -> float:
            each = functools.partial(self._sent, c, kind)
            return each(num_bytes, "data", "expert") + others * each(0, "data", "expert")

        software = self._cluster.software
        sums = scatters * sent("reducescatter" if stage else "allreduce", weights * _GRADIENT)
        gathered = gathers * sent("allgather", part * self._activation)
        return sums + gathered - min(software.overlap * (sums + gathered), busy)

    def _sent(self, c: Candidate, kind: str, num_bytes: float, *axes: str) -> float:
        """Returns the seconds of a collective over axes of the mesh, by default `model`."""
        over = tuple(axis for axis in axes or ("model",) if axis in c.axes)
        if not over:
            return 0.0
        return self._collective(c.mesh_shape, kind, over, FORWARD, 1, int(num_bytes), False)

    def _local_weights(self, c: Candidate, *, at_rest: bool = False) -> float:
        """Returns the number of weights of a processor, in use or at rest."""
        is_sharded = at_rest and c.zero_stage > 0
        in_layers, all_of_them = self._weights(c.data, c.expert, c.model, c.split, is_sharded)
        # If each stage has only the weights that it uses, one stage has the embedding and another
        # the matrix of the logits. A stage then has about half of the weights outside the layers.
        is_shared = c.stages > 1 and self._cluster.software.weights_where_used
        outside = (all_of_them - in_layers) / (2 if is_shared else 1)
        return in_layers * self._share_of_stage(c) + outside

    def _count_weights(
        self, data: int, expert: int, model: int, split: tuple[str, ...], is_sharded: bool
    ) -> tuple[float, float]:
        """Returns the number of a processor's weights in the layers, and in the whole model."""
        of = Candidate(data, model, 1, "none", int(is_sharded), False, expert, split=split)
        layout = Layout(of.mesh_shape, of.layout, Storage(of.zero_stage))
        sizes = {
            dims: math.prod(layout.slice_size(layout.at_rest(upstream.Shape(dims))))
            for dims in self.shapes
        }
        in_layers = sum(number * sizes[dims] for dims, number in self._in_layers.items())
        return in_layers, sum(number * sizes[dims] for dims, number in self.shapes.items())

    def memory(self, candidate: Candidate, rows: int) -> float:
        """Estimates the bytes of a device at the peak of a step."""
        c = candidate
        weights = self._local_weights(c)
        at_rest = self._local_weights(c, at_rest=True)
        state = (self._slots + _WEIGHT) * at_rest
        # In a pipeline, a stage keeps the unsharded gradients of a microbatch until the end of the
        # microbatch's backward pass, even if ZeRO shards the sums of the gradients.
        is_sharded = c.zero_stage >= 2
        are_whole = not is_sharded or c.stages > 1
        gradients = _GRADIENT * (is_sharded * at_rest + are_whole * weights)
        # Unsharded weights that have the activations' dtype need no copy. ZeRO stage 3 gathers the
        # weights of one layer at a time.
        copied = self._activation if c.zero_stage or self._activation < _WEIGHT else 0
        gathered = weights * copied / (self._layers if c.zero_stage == 3 else 1)
        micro = rows / c.data / c.microbatches
        split = c.model if c.sequence_parallel else 1
        kept = micro * self._kept * ((1 - _BETWEEN) / c.model + _BETWEEN / split)
        share = self._share_of_stage(c)
        alive = share * self._microbatches_alive(c)
        if c.sequence_parallel and not self._cluster.software.gathers_again:
            kept += micro * _GATHERED * self._layers * self._stream
        outside = micro * (self._kept_outside + self._logits) / c.model
        if c.recompute == "layer":
            # When the last layer is recomputed, the loss's tensors are already freed.
            inputs, repeated = micro * self._layers * self._stream / split, kept / self._layers
            first, last = repeated + alive * inputs, max(repeated, outside) + share * inputs
        else:
            first, last = kept * alive, kept * share + outside
        # The first stage saves the activations of the most microbatches. The last stage saves one
        # microbatch's activations, and the logits.
        kept = max(first, last) if c.stages > 1 else last
        software, used = self._cluster.software, gathered + kept
        has_sums = c.microbatches > 1 or (software.keeps_buffers and c.zero_stage < 3)
        # If gradients are not accumulated, they reuse the memory of activations and gathered
        # weights that have been freed.
        changing = used + gradients if has_sums else max(used, gradients)
        lost = software.fragmentation * (used if software.keeps_buffers else changing)
        return state + changing + lost + self._cluster.device.reserved

    def _microbatches_alive(self, c: Candidate) -> float:
        """Returns the number of microbatches whose activations the first stage saves at once."""
        if c.chunks == 1:
            return min(c.microbatches, c.stages)
        # Number of forward passes, each of one chunk, before the first stage's first backward pass.
        ahead = 2 * (c.stages - 1) + (c.chunks - 1) * c.stages + 1
        return min(c.microbatches, ahead / c.chunks)
