"""Every pair of options that add variables or losses works in all programs."""

import pytest

from tests.trainer.command import call
from tests.trainer.trained_runs import TEXTS, train

EXPERTS = "moe_gating=top_k,moe_top_k=2,num_experts=4,moe_every=1"
# Each option adds variables or terms of the loss. The first row contains all pairs of options, and
# the others show that no option needs another.
OPTIONS = {
    "averages": "ema_decay=0.5",
    "balances": f"{EXPERTS},moe_balance_rate=0.01",
    "guard": "skip_step_sigma=6",
    "float16": "activation_dtype=float16",
    "z losses": "z_loss=0.001,loss_chunk=-1",
    "factored": "optimizer=adafactor,optimizer_adafactor_beta1=0.9",
}
ROWS = [
    ("averages", "balances", "guard", "float16", "z losses", "factored"),
    ("averages", "guard", "z losses"),
    ("balances", "float16", "factored"),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids="+".join)
def test_options_train_evaluate_decode_export_and_resume_together(row, tmp_path):
    problem, model, hparams_set = TEXTS
    if "balances" in row:
        model, hparams_set = "transformer_moe", "transformer_moe_tiny"
    small = "d_model=16,d_ff=32,num_heads=2,d_kv=8,num_hidden_layers=1,max_length=32,batch_size=4"
    hparams = ",".join([small, "mesh_shape=,layout=", *(OPTIONS[name] for name in row)])
    flags = dict(hparams=hparams, train_steps=2, schedule="train_and_evaluate", eval_steps=1)
    run = train(tmp_path, (problem, model, hparams_set), **flags)
    assert call("t2tp_trainer", *run.flags(train_steps=3, schedule="train")) == 0
    assert call("t2tp_eval", *run.flags(eval_steps=1)) == 0
    assert len(run.decoded(tmp_path, ["import"], "beam_size=1,extra_length=3")) == 1
    assert call("t2tp_exporter", *run.flags(max_input_length=8)) == 0
