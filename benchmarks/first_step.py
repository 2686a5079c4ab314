"""Seconds from the start of Python to the end of a training step: of GPT-2 XL's layers, narrow.

    python benchmarks/first_step.py [--layers=48] [--all_passes]

With `--all_passes` TensorFlow's graph optimizer runs the passes that t2tp turns off on CPUs. Prints
the seconds of each phase, the nodes of the traced program, and the median of later steps.
"""

from __future__ import annotations

import argparse
import statistics
import time

WIDTH = "d_model=64,num_heads=4,d_kv=16,d_ff=256,max_length=64,microbatches=1"
ROWS, LATER_STEPS = 4, 9


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--all_passes", action="store_true")
    arguments = parser.parse_args()
    begins = [time.perf_counter()]

    def done(phase: str) -> None:
        begins.append(time.perf_counter())
        print(f"{begins[-1] - begins[-2]:6.2f} s  {phase}")

    from t2tp.quiet import quiet_import

    with quiet_import():
        import numpy as np
        import tensorflow as tf

        import t2tp
        from t2tp import registry
        from t2tp.processes.cluster import SKIPPED_PASSES
        from t2tp.trainer.planning import request
    done("import")
    if arguments.all_passes:
        tf.config.optimizer.set_experimental_options(dict.fromkeys(SKIPPED_PASSES, True))
    hparams = registry.hparams("gpt2_xl")
    hparams.parse(
        f"{WIDTH},num_hidden_layers={arguments.layers},batch_size={ROWS},"
        "batch_size_unit=sequences_per_batch,mesh_shape=data:1"
    )
    wanted = request("transformer_lm", hparams, vocab_size=8192)
    features = wanted.features(hparams)
    program = t2tp.Program(wanted.step_fn(hparams), features, layout=hparams.layout)
    done("build the graph, create the variables")
    nodes = len(program.trace().graph.get_operations())
    done(f"trace {nodes} nodes")
    batch = {name: np.ones(x.shape.to_integer_list, np.int32) for name, x in features.items()}
    float(program(batch, step=0)["loss"])
    done("optimize and run the first step")
    print(f"{begins[-1] - begins[0]:6.2f} s  all")
    seconds = []
    for step in range(1, 1 + LATER_STEPS):
        begin = time.perf_counter()
        float(program(batch, step=step)["loss"])
        seconds.append(time.perf_counter() - begin)
    print(f"{statistics.median(seconds):6.2f} s  a later step")


if __name__ == "__main__":
    main()
