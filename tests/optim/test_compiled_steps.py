"""The steps that XLA compiles: what a GPU can run without waiting for the host."""

import re

import pytest
import tensorflow as tf

import t2tp
from t2tp.optim import train_step
from tests.models.any_model import EVERY, small_model


def compiled_step(family: str, **changes: object) -> str:
    """Returns the optimized HLO of a family's training step."""
    model, _, features = small_model(family, **changes)

    def step(mesh, parts):
        done = train_step(lambda x: model.loss(mesh, x, True), parts, mesh, model.hparams, 9)
        return {"loss": done.loss}

    program = t2tp.Program(step, features, xla=True)
    program.trace()
    scalars = tf.constant(0), tf.constant([0], tf.int64)
    slices = [tf.zeros(program.layout.slice_size(f.shape), f.dtype) for f in features.values()]
    variables = [v.slices[0] for v in program._used]
    return program._run.experimental_get_compiler_ir(*scalars, variables, slices)("optimized_hlo")


@pytest.mark.parametrize("family", EVERY)
def test_x(family):
    hlo = compiled_step(family, skip_nonfinite_steps=True)
    open(f"/tmp/gpu/{family}.hlo", "w").write(hlo)
    whiles = [line for line in hlo.splitlines() if re.search(r"= .* while\(", line)]
    print(
        family,
        hlo.count(" conditional("),
        len(whiles),
        sum("known_trip_count" in w for w in whiles),
    )
