"""Muon: PyTorch's steps on one device, the same steps on every layout, and the least traffic."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tests.optim.regression import SHAPES, X, initial_value, make_hparams, train
from tests.optim.test_zero import assert_same, trained


@functools.cache
def torch_result(scale, weight_decay):
    """20 steps of PyTorch, whose matrices are [outputs, inputs], in float32."""
    parameters = {
        name: torch.nn.Parameter(torch.tensor(initial_value([d.size for d in dims]).numpy().T))
        for name, dims in SHAPES.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
        decay = {"lr": 0.01, "weight_decay": weight_decay}
        matrices = [parameters["w"], parameters["v"]]
        muon = torch.optim.Muon(matrices, **decay, adjust_lr_fn=scale)
        adam = torch.optim.AdamW([parameters["scale"]], 0.01, (0.9, 0.98), 1e-9, weight_decay=0.0)
        losses = []
        for x in torch.tensor(X):
            hidden = torch.tanh(x @ parameters["w"].T) * parameters["scale"]
            loss = ((hidden @ parameters["v"].T - x) ** 2).mean()
            muon.zero_grad()
            adam.zero_grad()
            loss.backward()
            muon.step()
            adam.step()
            losses.append(loss.item())
    return {"loss": np.array(losses)} | {
        name: p.detach().numpy().T for name, p in parameters.items()
    }


@pytest.mark.parametrize("layout", [("", ""), ("data:2;model:2", "batch:data;d_ff:model")])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_twenty_steps_are_those_of_pytorch(scale, layout):
    hparams = make_hparams(optimizer="muon", weight_decay=0.1, optimizer_muon_scale=scale)
    ours, wanted = train(hparams, *layout), torch_result(scale, 0.1)
    assert wanted["loss"][-1] < 0.9 * wanted["loss"][0]
    for name in wanted:
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


MESHES_OF_FAMILIES = [
    ("lm", "data", {}),
    ("lm", "both", {}),
    ("lm", "vocab", {"d_model": 18, "d_ff": 30, "num_heads": 2, "d_kv": 6}),
    ("lm", "context", {}),
    ("lm", "pods", {"microbatches": 2}),
    ("lm", "three axes", {}),
    ("lm", "stages", {"microbatches": 2, "num_hidden_layers": 3}),
    ("lm", "stages of 2", {"microbatches": 2, "num_hidden_layers": 4}),
    ("encdec", "both", {}),
    ("classes", "both", {}),
    ("moe", "experts", {}),
    ("moe_encdec", "data", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(("family", "mesh", "changes"), MESHES_OF_FAMILIES)
def test_a_step_is_that_of_one_device(family, mesh, changes, stage):
    changes = {"weight_decay": 0.1, "optimizer_adam_epsilon": 1e-3, **changes}
    given = trained(family, mesh, stage, "muon", **changes)
    assert_same(given, trained(family, "one device", 0, "muon", **changes))
