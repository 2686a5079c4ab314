"""A step with all kinds of dropout is the same with any number of microbatches on any mesh.

Programs are in float64, so that rounding hides no error.
"""

import pytest

from t2tp.mesh.layout import Layout
from tests.models.small_transformers import MEGATRON
from tests.pipeline.staged_steps import assert_equal, example, program, values

MESHES = {
    "one device": ("", ""),
    "data": ("data:2", MEGATRON),
    "three axes": ("data:2;seq:2;model:2", f"{MEGATRON};length:seq"),
    "experts of their own axis": ("data:2;expert:2", "batch:data+expert;experts:expert"),
}
LOCAL = {"attention_type": "local", "attention_window": 4, "position": "sinusoidal"}


CASES = [
    ("lm", {}, 4, "three axes"),
    ("lm", {"recompute": "layer"}, 2, "data"),
    ("lm", LOCAL, 4, "data"),
    ("masked", {}, 4, "three axes"),
    ("moe", {}, 8, "one device"),
    ("moe", {}, 2, "experts of their own axis"),
    # Two rows form a group of experts.
    ("moe", {"moe_group_size": 24, "moe_gating": "top_2"}, 2, "data"),
    ("moe_classes", {"moe_gating": "expert_choice"}, 2, "data"),
    ("moe_encdec", {}, 4, "one device"),
    ("moe_masked", {}, 4, "data"),
    ("vit", {}, 2, "data"),
    ("images", {"layer_prepostprocess_dropout": 0.2}, 4, "data"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "changes", "microbatches", "mesh"), CASES)
def test_microbatches_and_meshes_change_nothing(family, changes, microbatches, mesh):
    changes, (_, batch, _) = {"num_hidden_layers": 1, **changes}, example(family, {})
    wanted = values(program(family, Layout(), 1, **changes), batch)
    found = values(program(family, Layout(*MESHES[mesh]), microbatches, **changes), batch)
    assert_equal(found, wanted, 1e-11)
