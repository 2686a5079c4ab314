"""A mesh changes neither names nor shapes of variables, and ZeRO shards what it should.

Programs are abstract, so meshes of any size cost nothing.
"""

import functools
import math

import pytest

import t2tp
from t2tp import registry
from t2tp.mesh.layout import Layout
from t2tp.mesh.storage import Storage, name_in_use
from t2tp.program.abstract_program import AbstractProgram
from t2tp.trainer.planning import request

MODELS = [m for m in registry.list_models() if registry.model(m).__module__.startswith("t2tp.")]
# No axis below divides this size.
TOKENS = 31
EVERY_SIZE = 3 * 5 * 7 * 12
MESHES = {"model:7": 0, "model:12": 0, "data:5": 1, "data:12": 3, "data:7;model:3": 2}
ZERO_SIZES = [*range(1, 13), 24, 48, 96, 100]


def program(model: str, hparams_set: str, tokens: int = TOKENS, **changes) -> AbstractProgram:
    hparams = registry.hparams(hparams_set)
    batch = {"batch_size": EVERY_SIZE, "batch_size_unit": "sequences_per_batch"}
    for name, value in {"microbatches": 1, **batch, **changes}.items():
        if name in hparams:
            hparams.set(name, value)
    return request(model, hparams, tokens, (32, 32, 3)).program(hparams)


def global_shapes(program: AbstractProgram) -> dict[str, list[tuple[str, int]]]:
    return {
        v.spec.name: [(name_in_use(dim.name), dim.size) for dim in v.spec.shape.dims]
        for v in program.variables
    }


@functools.cache
def on(model: str, mesh: str, zero_stage: int = 0) -> dict[str, list[tuple[str, int]]]:
    axes = {axis.name for axis in Layout(mesh).mesh_shape.dims}
    rules = ";".join(r for r in ("batch:data", "vocab:model") if r.split(":")[1] in axes)
    changes = {"mesh_shape": mesh, "layout": rules, "zero_stage": zero_stage}
    return global_shapes(program(model, f"{model}_tiny", **changes))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", MODELS)
def test_names_and_global_shapes_of_variables_do_not_depend_on_the_mesh(model, mesh):
    if "data" not in mesh and "vocab_size" not in registry.hparams(f"{model}_tiny"):
        pytest.skip("no vocabulary to split")
    assert on(model, mesh, MESHES[mesh]) == on(model, "")


def test_the_vocabulary_has_no_rows_that_the_problem_lacks():
    assert ("vocab", TOKENS) in on("transformer_lm", "")["embedding"]


CASES = [
    ("transformer_lm", "gpt3_175b", 0.0),
    ("transformer_lm", "llama_7b", 0.0),
    ("transformer", "t5_small", 0.02),
    ("transformer_encoder", "bert_base", 0.02),
    ("vit", "vit_base", 0.02),
    ("mtf_resnet", "mtf_resnet_50", 0.02),
    ("transformer_moe", "transformer_moe_tiny", 0.02),
]


@pytest.mark.parametrize(("model", "hparams_set", "slack"), CASES)
def test_zero_shards_all_but_vectors_over_any_number_of_devices(model, hparams_set, slack):
    """Allows 2 % more than 1/n; for small models, without long dimensions, 2 % of the model."""
    alone = program(
        model, hparams_set, 50257, num_hidden_layers=2, mesh_shape="", layout="", zero_stage=0
    )
    shapes = [v.spec.shape for v in alone.variables if v.spec.trainable]
    vectors = sum(shape.size for shape in shapes if shape.ndims < 2)
    whole = sum(shape.size for shape in shapes) - vectors
    for n in ZERO_SIZES:
        layout = Layout(f"data:{n}", "batch:data", Storage(3))
        at_rest = [layout.slice_size(layout.at_rest(s)) for s in shapes if s.ndims > 1]
        stored = sum(map(math.prod, at_rest))
        assert whole / n <= stored <= 1.02 * whole / n + slack * whole, n
        assert not any(layout.at_rest.stays_whole(shape) for shape in shapes), n


REFUSED = [
    ("data:2", "batch:data", Storage(1, "daat"), "zero_axes.*'daat'.*data"),
    ("data:2", "batch:data", Storage(1, rules="d_model:modle"), "storage_layout.*'modle'"),
    ("model:2", "d_ff:model", Storage(3), "zero_stage=3 shards none of the"),
]


@pytest.mark.parametrize(("mesh", "layout", "storage", "names"), REFUSED)
def test_zero_that_shards_nothing_is_refused(mesh, layout, storage, names):
    with pytest.raises(t2tp.LayoutError, match=names):
        changes = {"mesh_shape": mesh, "layout": layout, "zero_stage": storage.stage}
        changes |= {"zero_axes": storage.axes, "storage_layout": storage.rules}
        program("transformer_lm", "transformer_lm_tiny", **changes)


def test_weights_that_zero_cannot_shard_are_named(caplog):
    """Both dimensions are split, and 3 does not divide a dimension of the slices."""
    with caplog.at_level("WARNING", logger="absl"):
        program(
            "transformer_lm",
            "transformer_lm_tiny",
            mesh_shape="data:3;rows:2;columns:2",
            layout="batch:data;d_model:rows;d_ff:columns",
            zero_stage=1,
        )
    (warning,) = [r.getMessage() for r in caplog.records if "ZeRO" in r.getMessage()]
    assert "layer_00/feed_forward/" in warning and "attention/q" not in warning
