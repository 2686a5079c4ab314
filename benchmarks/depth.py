"""Measures what one more layer costs before the first step, in seconds of a core.

    python benchmarks/depth.py [--mesh=data:2;model:2] [--set=transformer_lm_tiny]

Builds a language model with 2 and with 10 layers, and divides the difference by 8. `build` makes
the graph and the variables, `trace` lowers the graph to TensorFlow, and `first step` is what
TensorFlow then needs more than for a later step.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import hparams  # noqa: F401  (registers the sets)
import t2tp
from t2tp import registry
from t2tp.mesh.layout import Layout
from t2tp.trainer.planning import request

FEW, MANY = 2, 10
PARTS = ("build", "trace", "first step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", default="")
    parser.add_argument("--set", default="transformer_lm_tiny")
    args = parser.parse_args()
    measured(args.set, args.mesh, FEW)  # TensorFlow's own start
    few, many = (measured(args.set, args.mesh, layers) for layers in (FEW, MANY))
    per_layer = [(b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True)]
    print("seconds of a core for a layer, on " + (args.mesh or "one device"))
    for part, seconds in zip((*PARTS, "operations"), per_layer, strict=True):
        print(f"{part}: {seconds:.0f}" if part == "operations" else f"{part}: {seconds:.3f}")
    print(f"together: {sum(per_layer[:-1]):.3f}")


def measured(hparams_set: str, mesh: str, layers: int) -> list[float]:
    """Returns the seconds of each part, and the number of TensorFlow operations of the program."""
    chosen = registry.hparams(hparams_set)
    chosen.parse(
        f"num_hidden_layers={layers},batch_size=8,batch_size_unit=sequences_per_batch,max_length=64"
    )
    if mesh:
        chosen.parse(f"mesh_shape={mesh},layout=batch:data;heads:model;d_ff:model;vocab:model")
    step = request("transformer_lm", chosen, 256)
    features = step.features(chosen)
    moments = [time.process_time()]
    layout = Layout.from_hparams(chosen)
    program = t2tp.Program(step.step_fn(chosen), features, layout=layout)
    moments.append(time.process_time())
    operations = len(program.trace().graph.get_operations())
    moments.append(time.process_time())
    batch = program.place(
        {
            name: np.ones(feature.shape.to_integer_list, feature.dtype.as_numpy_dtype)
            for name, feature in features.items()
        }
    )
    later = 0.0
    for number in range(4):
        start = time.process_time()
        float(program(batch, step=number)["loss"])
        later = time.process_time() - start
        if not number:
            moments.append(moments[-1] + later)
    build, trace, first = np.diff(moments)
    return [build, trace, first - later, operations]


if __name__ == "__main__":
    main()
