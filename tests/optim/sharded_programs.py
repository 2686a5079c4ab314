"""Programs that train a model on a mesh, with variables sharded at rest."""

from t2tp import registry
from t2tp.layout_check.double_program import DoubleProgram
from t2tp.mesh.layout import Layout
from t2tp.optim import train_step
from tests.models.small_transformers import FAMILIES, MEGATRON

MESHES = {
    "one device": ("", ""),
    "data": ("data:4", MEGATRON),
    "both": ("data:2;model:2", MEGATRON),
    "context": ("data:2;seq:2", f"{MEGATRON};length:seq"),
    "three axes": ("data:2;seq:2;model:2", f"{MEGATRON};length:seq"),
    "vocab": ("data:2;model:4", "batch:data;vocab:model"),
    "features": ("a:2;b:2;c:2", "batch:a;heads:b;d_ff:b;vocab:b;d_model:c"),
    "experts": ("data:2;expert:2", "batch:data+expert;experts:expert"),
    "stages": ("pipe:2;data:2", "batch:data;layers:pipe"),
    "stages of 2": ("pipe:2;data:2;model:2", f"{MEGATRON};layers:pipe"),
    "pods": ("pod:2;data:2", "batch:pod+data"),
}


SCHEDULE = {"learning_rate_schedule": "constant", "learning_rate_constant": 0.01}


def training_step(model):
    """Returns a step that trains a model: it outputs loss, gradient norm and summed metrics."""

    def step(mesh, features):
        done = train_step(lambda x: model.loss(mesh, x, True), features, mesh, model.hparams, 10)
        return {"loss": done.loss, "gradient_norm": done.scalars["gradient_norm"], **done.sums}

    return step


def make(family, mesh, stage, optimizer="sgd", kind=DoubleProgram, **changes):
    """Returns a program that trains a model."""
    made = FAMILIES[family]
    mesh_shape, layout = MESHES[mesh]
    hparams = made.hparams(
        **(SCHEDULE | changes),
        mesh_shape=mesh_shape,
        layout=layout,
        zero_stage=stage,
        optimizer=optimizer,
    )
    step = training_step(registry.model(made.model)(hparams, made.vocab_sizes))
    return kind(step, made.features(), layout=Layout.from_hparams(hparams), xla=False)
