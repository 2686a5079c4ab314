"""`t2tp_trainer --check_transfer` compares activations of several widths."""

import re

import pytest

from t2tp.optim.optimizer import Optimizer
from t2tp.trainer import transfer_check

WIDE = (
    "transfer_from=transformer_lm_plain_tiny,d_model=512,d_ff=2048,num_heads=16,"
    "num_hidden_layers=1,learning_rate_constant=0.003,batch_size=4,max_length=32,layer_prepostprocess_dropout=0.0"
)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_sizes_of_activations_stay_over_widths(trainer, capfd, optimizer):
    assert trainer(check_transfer=True, hparams=f"{WIDE},optimizer={optimizer}") == 0
    said = capfd.readouterr().out
    assert re.search(r"steps +1x +2x +4x", said)
    assert "layer_00/feed_forward/einsum" in said
    assert "grows" not in said


@pytest.mark.slow
def test_rates_that_do_not_follow_the_width_are_reported(trainer, monkeypatch, capfd):
    monkeypatch.setattr(Optimizer, "rate_factor", lambda *_: 1.0)
    assert trainer(check_transfer=True, hparams=WIDE) == 1
    said = capfd.readouterr()
    assert re.search(r"layer_00/\S+ .* grows", said.out)
    assert "the rates do not transfer" in said.err


def test_the_width_is_by_variables_and_not_by_other_integers(trainer, monkeypatch, capfd):
    trained = []

    def train(spec, hparams):
        trained.append((hparams.d_model, hparams.microbatches))
        return {"product": [1.0] * (transfer_check.STEPS + 1)}

    monkeypatch.setattr(transfer_check, "_train", train)
    assert trainer(check_transfer=True, hparams=f"{WIDE},learning_rate_warmup_steps=1000000") == 0
    assert re.search(r"steps +1x +2x +4x ", capfd.readouterr().out)
    assert trained == [(128, 1), (256, 1), (512, 1)]
    same = "transfer_from=transformer_lm_plain_tiny,learning_rate_warmup_steps=1000000"
    assert trainer(check_transfer=True, hparams=same) == 2
    assert "no smaller sizes" in capfd.readouterr().err


def test_a_run_without_a_smaller_set_is_refused(trainer, capfd):
    assert trainer(check_transfer=True) == 2
    assert "transfer_from" in capfd.readouterr().err
