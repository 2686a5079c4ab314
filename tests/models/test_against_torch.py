"""t2tp and PyTorch train to the same losses, from the same weights and batches."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
import t2tp.hparams
from t2tp import registry
from t2tp.models.transformer_lm import TransformerLm
from t2tp.optim import apply_gradients
from tests.models import torch_lm
from tests.models.small_lm import one_document_a_row

STEPS, BATCH, LENGTH, VOCAB, RATE = 20, 8, 16, 30, 0.02
SMALL = "d_model=16,d_ff=40,num_heads=2,d_kv=8,initializer_stddev=0.1"
CONSTANT = f"learning_rate_schedule=constant,learning_rate_constant={RATE}"


def trained(batches, mesh_shape: str, changes: str) -> tuple[dict[str, np.ndarray], list[float]]:
    """Returns initial values, and the losses of steps on batches [batch, length + 1]."""
    hparams = registry.hparams("transformer_lm_tiny")
    hparams.parse(f"{SMALL},{CONSTANT}")
    hparams.parse(changes)

    def step(mesh, features):
        loss = TransformerLm(hparams, {"targets": VOCAB}).loss(mesh, features, training=True).loss
        apply_gradients(loss, mesh, hparams, STEPS)
        return {"loss": loss}

    rows = t2tp.Feature(f"batch:{BATCH};length:{LENGTH}", tf.int32)
    names = ("targets", "targets_segmentation", "targets_position")
    features = dict.fromkeys(names, rows) | {
        "targets_previous": t2tp.Feature(f"batch:{BATCH}", tf.int32)
    }
    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=hparams.layout)
    initial = {v.spec.name: v.numpy() for v in program.variables if "muon" not in v.spec.name}
    losses = []
    for number, rows in enumerate(batches):
        fed = {**one_document_a_row(rows[:, 1:]), "targets_previous": rows[:, 0]}
        losses.append(program(fed, step=number)["loss"])
    return initial, losses


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("mesh_shape", ["", "data:2;model:2"])
def test_twenty_steps_have_the_losses_of_pytorch(mesh_shape, optimizer, monkeypatch):
    batches = (
        np.random.default_rng(0).integers(1, VOCAB, [STEPS, BATCH, LENGTH + 1]).astype(np.int32)
    )
    batches[:, :, 8:16] = batches[:, :, :8]  # Repeated tokens give the model something to learn.
    initial, losses = trained(batches, mesh_shape, f"optimizer={optimizer}")
    monkeypatch.setattr(torch_lm.torch.Tensor, "bfloat16", lambda x: x.clone())
    wanted, _ = torch_lm.trained(initial, ((each, RATE) for each in batches), optimizer)
    assert wanted[-1] < wanted[0] - 0.1
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
