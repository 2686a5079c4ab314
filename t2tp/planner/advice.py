"""Plans changes of hparams, one by one, that may make a step faster or make it fit.

A change is tried only if the model, mesh and layout allow it, and if it may relieve the plan's
bottleneck.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.pipeline.schedules import pipeline_schedule, searched_schedules
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.depth import with_values
from t2tp.planner.plan import BUBBLE, COMMUNICATION, MATMULS, MEMORY, OPTIMIZER, Plan
from t2tp.planner.request import Request
from t2tp.step.work import ATTENTION

Values = dict[str, Any]
# Further bottlenecks: too little memory, and communication over the axes that split the batch.
_SPACE, _BATCH = "memory", "communication of the batch"
_COMPUTE = (MATMULS, ATTENTION, MEMORY)


def changes(hparams: HParams, plan: Plan) -> list[Values]:
    """Returns the hparams that may relieve the plan's bottleneck."""
    layout = Layout.from_hparams(hparams)
    part, _ = plan.bottleneck
    if plan.fits != "yes":
        part = _SPACE
    elif part.startswith(COMMUNICATION):
        is_of_batch = any(axis.name in part for axis in layout.axes_of("batch"))
        part = _BATCH if is_of_batch else COMMUNICATION
    return [
        values
        for parts, values in _options(hparams, layout)
        if part in parts
        and values.keys() <= hparams.values().keys()
        and any(hparams.get(name) != value for name, value in values.items())
    ]


def tried(request: Request, cluster: ClusterFile, plan: Plan) -> list[tuple[Values, Plan]]:
    """Plans each change alone; returns the plans that fit, then the others, each fastest first."""
    found = []
    for values in changes(request.hparams, plan):
        changed = with_values(request.hparams, values)
        try:
            other = dataclasses.replace(request, hparams=changed).plan(cluster)
        except ValueError:  # The batch, the layers or the heads do not allow the change.
            continue
        found.append((values, other))
    return sorted(found, key=lambda each: (each[1].fits != "yes", each[1].seconds))


def _options(hparams: HParams, layout: Layout) -> Iterator[tuple[tuple[str, ...], Values]]:
    """Yields the bottlenecks that a change may relieve, and the change."""
    microbatches, stage = hparams.microbatches, hparams.zero_stage
    yield _COMPUTE, {"recompute": "none"}
    for part in ("layer", "attention", "feed_forward"):
        yield (_SPACE,), {"recompute": part}
    yield (_SPACE, BUBBLE), {"microbatches": 2 * microbatches}
    if microbatches % 2 == 0 and layout.num_stages == 1:
        yield (*_COMPUTE, _BATCH), {"microbatches": microbatches // 2}
    if layout.batch_slices > 1:
        # Stage 2 reduces gradients after each microbatch, and stage 3 gathers weights, too.
        yield (_SPACE,), {"zero_stage": 3 if microbatches == 1 else min(3, stage + 1)}
        yield (OPTIMIZER,), {"zero_stage": max(1, stage)}
        yield (_BATCH,), {"zero_stage": min(1, stage)}
    for name in searched_schedules():
        chunks = min(pipeline_schedule(name).chunks)
        yield (BUBBLE,), {"pipeline_schedule": name, "pipeline_chunks": chunks}
    split, batch = layout.axes_of("heads"), layout.axes_of("batch")
    if split and "sequence_parallel" in hparams and not hparams.sequence_parallel:
        names = "+".join(axis.name for axis in [*layout.axes_of("length"), *split])
        rules = f"{layout.rules_text};residual_length:{names}"
        yield (_SPACE, MEMORY, COMMUNICATION), {"sequence_parallel": True, "layout": rules}
    if len(split) == 1 and split[0].size % 2 == 0 and batch:
        sizes = {axis.name: axis.size for axis in layout.mesh_shape.dims}
        sizes |= {split[0].name: split[0].size // 2, batch[0].name: 2 * batch[0].size}
        mesh_shape = ";".join(f"{name}:{size}" for name, size in sizes.items())
        yield (*_COMPUTE, COMMUNICATION), {"mesh_shape": mesh_shape}
