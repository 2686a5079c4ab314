"""Changes that may make a step faster, or make it fit, planned one by one.

The bottleneck of a plan says which changes can help, and only the changes that this model, mesh and
layout allow are tried: recomputation is not dropped where there is none, and no axis gets smaller
than one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.plan import BUBBLE, COMMUNICATION, MEMORY, OPTIMIZER, Plan
from t2tp.planner.request import Request

Values = dict[str, Any]


def changes(hparams: HParams, plan: Plan) -> list[Values]:
    """Returns the hparams that may relieve the plan's bottleneck, the most promising first."""
    layout = Layout.from_hparams(hparams)
    relevant = _to_fit if plan.fits != "yes" else _to_speed_up(plan.bottleneck[0], layout)
    made = [
        values for values in relevant(hparams, layout) if values.keys() <= hparams.values().keys()
    ]
    return [values for values in made if any(hparams.get(n) != v for n, v in values.items())]


def tried(request: Request, cluster: ClusterFile, plan: Plan) -> list[tuple[Values, Plan]]:
    """Plans each change alone, and returns the plans that fit first, the fastest of them first."""
    found = []
    for values in changes(request.hparams, plan):
        changed = request.hparams.copy()
        for name, value in values.items():
            changed.set(name, value)
        try:
            other = dataclasses.replace(request, hparams=changed).plan(cluster)
        except ValueError:  # The batch, the layers or the heads do not allow it.
            continue
        found.append((values, other))
    return sorted(found, key=lambda each: (each[1].fits != "yes", each[1].seconds))


def _to_fit(hparams: HParams, layout: Layout) -> Iterator[Values]:
    yield {"recompute": "layer"}
    yield {"microbatches": 2 * hparams.microbatches}
    if layout.batch_shards > 1 and hparams.zero_stage < 3:
        yield {"zero_stage": 3 if hparams.microbatches == 1 else max(1, hparams.zero_stage + 1)}
    yield from _sequence_parallel(hparams, layout)


def _to_speed_up(part: str, layout: Layout) -> Callable[[HParams, Layout], Iterator[Values]]:
    if part == BUBBLE:
        return _fill_stages
    if part == OPTIMIZER:
        return _shard_state
    if part.startswith(COMMUNICATION):
        of_batch = any(axis.name in part for axis in layout.axes_of("batch"))
        return _reduce_less if of_batch else _split_less
    return _move_less if part == MEMORY else _compute_less


def _fill_stages(hparams: HParams, layout: Layout) -> Iterator[Values]:
    yield {"microbatches": 2 * hparams.microbatches}
    yield {"pipeline_schedule": "interleaved", "pipeline_chunks": 2}
    yield {"pipeline_schedule": "zero_bubble", "pipeline_chunks": 1}


def _shard_state(hparams: HParams, layout: Layout) -> Iterator[Values]:
    if layout.batch_shards > 1 and not hparams.zero_stage:
        yield {"zero_stage": 1}
    yield from _compute_less(hparams, layout)


def _reduce_less(hparams: HParams, layout: Layout) -> Iterator[Values]:
    if hparams.zero_stage > 1:
        yield {"zero_stage": hparams.zero_stage - 1}
    yield from _larger_microbatches(hparams, layout)


def _split_less(hparams: HParams, layout: Layout) -> Iterator[Values]:
    """Moves processors from tensor parallelism to the batch."""
    yield from _sequence_parallel(hparams, layout)
    sizes = {axis.name: axis.size for axis in layout.mesh_shape.dims}
    split, batch = layout.axes_of("heads"), layout.axes_of("batch")
    if len(split) == 1 and split[0].size % 2 == 0 and batch:
        sizes |= {split[0].name: split[0].size // 2, batch[0].name: 2 * batch[0].size}
        yield {"mesh_shape": ";".join(f"{name}:{size}" for name, size in sizes.items())}


def _move_less(hparams: HParams, layout: Layout) -> Iterator[Values]:
    yield from _sequence_parallel(hparams, layout)
    yield from _compute_less(hparams, layout)


def _compute_less(hparams: HParams, layout: Layout) -> Iterator[Values]:
    yield {"recompute": "none"}
    yield from _larger_microbatches(hparams, layout)
    yield from _split_less(hparams, layout)


def _larger_microbatches(hparams: HParams, layout: Layout) -> Iterator[Values]:
    if hparams.microbatches % 2 == 0 and layout.num_stages == 1:
        yield {"microbatches": hparams.microbatches // 2}


def _sequence_parallel(hparams: HParams, layout: Layout) -> Iterator[Values]:
    axes = layout.axes_of("heads")
    if "sequence_parallel" in hparams and not hparams.sequence_parallel and axes:
        names = "+".join(axis.name for axis in [*layout.axes_of("length"), *axes])
        rules = f"{layout.rules_text};residual_length:{names}"
        yield {"sequence_parallel": True, "layout": rules}
