"""Prints how many bytes a pipeline's step needs, and how many a stage saves per microbatch.

It runs in a process of its own, with the name of a schedule as the argument, because a process can
measure its peak only once.
"""

import sys

from t2tp.mesh.layout import Layout
from t2tp.mesh.stages import Pipeline
from t2tp.pipeline.loop import PipelineLoop
from tests.optim.step_memory import measured
from tests.peak_memory import give_back_freed_blocks

STAGES, MICROBATCHES, LENGTH = 4, 16, 256


def main() -> None:
    give_back_freed_blocks()
    layout = Layout(f"stage:{STAGES}", "layers:stage", None, Pipeline(sys.argv[1]))
    changes = f"max_length={LENGTH},num_hidden_layers={STAGES},microbatches={MICROBATCHES}"
    needed, program = measured(4 * MICROBATCHES, LENGTH, 64, changes, layout)
    operations, _ = program.graph()
    (loop,) = (op for op in operations.operations if isinstance(op, PipelineLoop))
    kept = sum(x.shape.size * x.dtype.size for x in loop.partition.pieces(0, 1).saved_activations)
    print(needed, kept)
