"""A checkpoint's metrics depend neither on the mesh nor on the batch size, whatever the model."""

from __future__ import annotations

import json

import pytest

from t2tp.trainer.t2tp_eval import main
from tests.trainer.trained_runs import train

PAIRS = "d_model=16,d_ff=32,d_kv=8,num_heads=2,num_hidden_layers=1,max_length=32,batch_size=8"
EXPERTS = "num_experts=4,moe_every=1,moe_capacity_factor_eval=1.0"  # Some tokens find no place.
MODELS = {
    "transformer": ("translate_upper_case", "transformer_tiny", PAIRS),
    "transformer_moe_encdec": (
        "translate_upper_case",
        "transformer_moe_encdec_tiny",
        f"{PAIRS},{EXPERTS}",
    ),
    "mtf_resnet": ("image_digits", "mtf_resnet_tiny", ""),
}
# Neither 21 pairs nor 250 pictures are whole batches of them.
OTHERWISE = [
    {"hparams": "batch_size=5,mesh_shape="},
    {"hparams": "batch_size=12", "mesh_shape": "data:2;model:2"},
]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_metrics_are_the_same_on_any_mesh_and_with_any_batch_size(tmp_path, capfd, model):
    problem, hparams_set, hparams = MODELS[model]
    run = train(tmp_path, problem, model, hparams_set, hparams=hparams, train_steps=3)
    rows = []
    for flags in ({"hparams": "batch_size=16,mesh_shape="}, *OTHERWISE):
        capfd.readouterr()
        assert main(["t2tp_eval", *run.flags(**flags)]) == 0
        rows.append(json.loads(capfd.readouterr().out))
    first, *others = rows
    assert {"loss", "accuracy"} <= first.keys()
    for row in rows:
        assert row.pop("checkpoint").endswith("step-00000003")
    for other in others:
        assert other == pytest.approx(first, rel=1e-5)
