"""Muon matches PyTorch and optax, in any layout, with minimal traffic."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import t2tp
from t2tp.building.mesh import declared
from t2tp.optim.orthogonalization import OrthogonalizeOperation
from tests.optim.regression import SHAPES, X, assert_close, initial_value, make_hparams, train
from tests.optim.sharded_programs import make


@functools.cache
def torch_result(scale, weight_decay):
    """Trains for 20 steps in PyTorch, in float32; its matrices are [outputs, inputs]."""
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


def optax_result(scale, weight_decay):
    """Returns the result of `optax.contrib.muon`, as benchmarks/muon_optax.py stored it."""
    assert weight_decay == 0.1
    stored = json.loads(Path(__file__).with_name("muon_optax.json").read_text("utf-8"))
    return {name: np.array(value) for name, value in stored[scale].items()}


@pytest.mark.parametrize("peer_result", [torch_result, optax_result])
@pytest.mark.parametrize("layout", [("", ""), ("data:2;model:2", "batch:data;d_ff:model")])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_twenty_steps_are_those_of_a_peer(scale, layout, peer_result):
    hparams = make_hparams(optimizer="muon", weight_decay=0.1, optimizer_muon_scale=scale)
    ours, wanted = train(hparams, *layout), peer_result(scale, 0.1)
    assert wanted["loss"][-1] < 0.9 * wanted["loss"][0]
    assert_close(ours, wanted, 1e-6, 3e-6)


PLACES = [("data", 0, 4, 1), ("both", 0, 2, 2), ("pods", 1, 1, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "stage", "copies", "split"), PLACES)
def test_each_slice_travels_once_to_its_owner_and_back(mesh, stage, copies, split):
    """Slices of each matrix move to its owner and back; owners are distributed over the copies."""

    def bytes_by_kind(optimizer):
        changes = {"num_hidden_layers": 4, "d_ff": 32}
        program = make("lm", mesh, stage, optimizer, kind=t2tp.Program, **changes)
        totals = dict.fromkeys(("alltoall", "allgather"), 0)
        for (kind, _), (_, size) in program.collectives().items():
            totals[kind] = totals.get(kind, 0) + size
        flops = sum(
            2 * math.prod(op.product_sizes(program.layout))
            for op in program.graph()[0].operations
            if isinstance(op, OrthogonalizeOperation)
        )
        matrices = [
            v for v in program.graph()[0].trainable_variables if declared(v).role.kind == "matrix"
        ]
        return totals, flops, len(matrices)

    (with_adam, _, _), (with_muon, flops, matrices) = map(bytes_by_kind, ("adam", "muon"))
    extra = {kind: with_muon[kind] - with_adam.get(kind, 0) for kind in with_muon}
    slices = matrices * 16 * 32 * 4 // split
    assert extra.pop("alltoall") == (2 * slices // copies if split > 1 else 0)
    assert extra.pop("allgather") == (slices // copies if copies > 1 else 0)
    assert not any(extra.values())
    # Each matrix is orthogonalized on one device only.
    assert copies * split * flops == matrices * 5 * 2 * (2 * 16 * 16 * 32 + 16**3)
