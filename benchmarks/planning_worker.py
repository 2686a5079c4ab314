"""One process of a measurement of `planning.py`: steps of a model, their seconds and memory.

    python benchmarks/planning_worker.py NUMBER_OF_CASE seconds|memory RANK COORDINATOR

Prints one line of JSON:

* `seconds`: seconds of each step;
* `variables`: bytes of the slices of variables in this process;
* `held`: peak memory of the steps minus the memory between steps, according to /proc.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping

import numpy as np
from planning_cases import CASES, MODELS, Case
from resident_memory import reset_peak, resident

WARM_UP = 2
FEW_STEPS, FEWEST_STEPS, MOST_STEPS, ENOUGH_SECONDS = 2, 4, 12, 4.0


def main() -> int:
    number, what, rank, coordinator = sys.argv[1:]
    steps = FEW_STEPS if what == "memory" else MOST_STEPS
    print(json.dumps(measured(CASES[int(number)], int(rank), coordinator, steps)))
    return 0


def measured(case: Case, rank: int, coordinator: str, most_steps: int) -> dict[str, object]:
    """Trains a case as one of its processes, and returns the measurements."""
    import t2tp
    from t2tp.mesh.layout import Layout

    wanted = case.request
    layout = Layout.from_hparams(wanted.hparams)
    several = {"num_processes": case.processes, "process_id": rank, "coordinator": coordinator}
    cluster = t2tp.connect(layout.size, **(several if case.processes > 1 else {}))
    features = wanted.features(wanted.hparams)
    program = t2tp.Program(wanted.step_fn(wanted.hparams), features, layout=layout, cluster=cluster)
    _, _, vocab_size, _ = MODELS[case.model]
    batch = program.place(_batch(features, vocab_size))
    for step in range(WARM_UP):
        float(program(batch, step=step)["loss"])
    rest = resident("VmRSS")
    reset_peak()
    seconds: list[float] = []
    # Several processes take exactly FEWEST_STEPS: each would wait forever for one that stops early.
    while len(seconds) < (min(FEWEST_STEPS, most_steps) if case.processes > 1 else most_steps):
        begin = time.perf_counter()
        float(program(batch, step=WARM_UP + len(seconds))["loss"])
        seconds.append(time.perf_counter() - begin)
        if len(seconds) >= FEWEST_STEPS and sum(seconds) > ENOUGH_SECONDS:
            break
    return {
        "seconds": seconds,
        "variables": sum(x.numpy().nbytes for v in program.variables for x in v.slices),
        "held": resident("VmHWM") - rest,
    }


def _batch(features: Mapping, vocab_size: int) -> dict[str, np.ndarray]:
    """Rows of tokens or images, without padding."""
    generator = np.random.default_rng(0)
    made = {}
    for name, feature in features.items():
        sizes = feature.shape.to_integer_list
        if name.endswith("_segmentation"):
            made[name] = np.ones(sizes, np.int32)
        elif name.endswith("_position"):
            made[name] = np.broadcast_to(np.arange(sizes[-1], dtype=np.int32), sizes)
        elif feature.dtype.is_integer:
            made[name] = generator.integers(1, vocab_size, sizes, np.int32)
        else:
            made[name] = generator.random(sizes, np.float32)
    return made


if __name__ == "__main__":
    sys.exit(main())
