"""A step of any model is the same in any number of microbatches, on any mesh, with all dropout.

In float64, so that nothing hides behind rounding.
"""

import functools

import numpy as np
import pytest

from t2tp import registry
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.optim import train_step
from tests.layout_check import double_program
from tests.models import small_image_transformer, small_images
from tests.models.small_transformers import FAMILIES, MEGATRON
from tests.pipeline.staged_steps import DESCENT, DROPOUT

# Of transformers: a family, and changes.
TRANSFORMERS = {
    "lm": ("lm", {}),
    "recomputed": ("lm", {"recompute": "layer"}),
    "local": ("lm", {"attention_type": "local", "attention_window": 4, "position": "sinusoidal"}),
    "classes": ("classes", {}),
    "masked": ("masked", {}),
    "switch": ("moe", {}),
    "groups in rows": ("moe", {"moe_group_size": 6, "moe_gating": "top_2"}),
    "groups of two rows": ("moe", {"moe_group_size": 24}),
    "expert choice": ("moe_classes", {"moe_gating": "expert_choice"}),
    "experts of an encdec": ("moe_encdec", {}),
    "experts of masked": ("moe_masked", {}),
}
IMAGES = {"vit": ("vit", "vit_tiny", {"pooling": "class", "num_hidden_layers": 1, "d_model": 32})}
ON_IMAGES = "batch:data;d_ff:model;heads:model;height:seq"
MESHES = {
    "one device": ("", ""),
    "data": ("data:2", MEGATRON),
    "three axes": ("data:2;seq:2;model:2", f"{MEGATRON};length:seq"),
    "experts of their own axis": ("data:2;expert:2", "batch:data+expert;experts:expert"),
}
CASES = [
    ("lm", 4, "three axes"),
    ("recomputed", 2, "data"),
    ("local", 4, "data"),
    ("classes", 8, "one device"),
    ("masked", 4, "data"),
    ("switch", 8, "one device"),
    ("switch", 2, "experts of their own axis"),
    ("groups in rows", 4, "data"),
    ("groups of two rows", 2, "data"),
    ("expert choice", 2, "data"),
    ("experts of an encdec", 4, "one device"),
    ("experts of masked", 4, "data"),
    ("vit", 2, "data"),
    ("image transformer", 4, "data"),
]


@functools.cache
def model_of(name):
    """A registered model, its hparams, vocabulary sizes, a batch and features."""
    if name in IMAGES:
        model, hparams_set, changes = IMAGES[name]
        hparams = small_images.make_hparams(hparams_set, dropout=0.2, **changes)
        batch = small_images.make_batch()
        return model, hparams, {"targets": 10}, batch, small_images.features_of(batch)
    if name == "image transformer":
        hparams = small_image_transformer.make(
            "full", num_hidden_layers=1, layer_prepostprocess_dropout=0.2, relu_dropout=0.2
        )
        shape = (small_images.BATCH, *small_image_transformer.SHAPE)
        targets = np.random.default_rng(0).integers(14, size=shape).astype(np.int32)
        batch = {"targets": targets, "weights": np.linspace(0, 1, len(targets), dtype=np.float32)}
        features = small_images.features_of(batch)
        return "mtf_image_transformer", hparams, {"targets": 14}, batch, features
    family, changes = TRANSFORMERS[name]
    family = FAMILIES[family]
    hparams = family.hparams(**{**DROPOUT, **changes})
    return family.model, hparams, family.vocab_sizes, family.batch(), family.features()


@functools.cache
def a_step(name, microbatches, mesh):
    """The loss and metrics of a step, and the variables after it."""
    model, hparams, vocab_sizes, batch, features = model_of(name)
    hparams = hparams.copy()
    for key, value in {**DESCENT, "microbatches": microbatches}.items():
        hparams.set(key, value)
    made = registry.model(model)(hparams, vocab_sizes)

    def step(mesh, given):
        done = train_step(lambda part: made.loss(mesh, part, True), given, mesh, hparams, 1)
        return {"loss": done.loss, **done.sums}

    mesh_shape, layout = MESHES[mesh]
    if name in IMAGES:
        layout = ON_IMAGES
    program = DoubleProgram(step, features, mesh_shape=mesh_shape, layout=layout, xla=False)
    shown = program(batch, step=3)
    # Of scalar summaries the average of the microbatches is shown.
    values = {k: np.asarray(x) for k, x in shown.items() if not k.startswith("summaries/")}
    return values | {v.spec.name: double_program.whole(program, v) for v in program.variables}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "microbatches", "mesh"), CASES)
def test_microbatches_and_meshes_change_nothing(name, microbatches, mesh):
    wanted, values = a_step(name, 1, "one device"), a_step(name, microbatches, mesh)
    small_images.assert_close(values, wanted, 1e-11)
