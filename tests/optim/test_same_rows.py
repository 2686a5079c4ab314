"""Sound processors compute the same from the same rows, whatever the layout splits.

`tests/trainer/hooks/test_replicas.py` tests a faulty processor.
"""

import pytest

from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import Storage
from t2tp.optim.same_rows import SameRows
from t2tp.program.program import Program
from tests.pipeline.staged_steps import example

CASES = [
    ("lm", "data:2;model:2", "batch:data;heads:model;d_ff:model;vocab:model", 3),
    ("moe", "data:2;model:2", "batch:data;experts:data;d_ff:model", 1),
    ("encdec", "stage:2;data:2", "batch:data;layers:stage", 1),
]


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.parametrize(("family", "mesh", "rules", "zero"), CASES)
def test_sound_processors_agree(family, mesh, rules, zero):
    model, batch, features = example(family, {})

    def loss_fn(mesh, parts):
        return model.loss(mesh, parts, training=True).loss

    def step(mesh, parts):
        return {"loss": loss_fn(mesh, parts)}

    program = Program(step, features, layout=Layout(mesh, rules, Storage(zero)))
    assert SameRows(loss_fn, program, features, 2).mismatch(batch, 3) is None
