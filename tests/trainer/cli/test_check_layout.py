"""`t2tp_trainer --check_layout` compares the run's layout with one device, in small dimensions."""

import re

import pytest

from t2tp import mtf
from t2tp.lowering import rules
from t2tp.lowering.context import Lowering

MESH = {"mesh_shape": "data:2;model:2"}


@pytest.mark.slow
def test_a_right_layout_agrees_and_leaves_nothing(trainer, tmp_path, capfd):
    hparams = "num_hidden_layers=6,d_ff=64,layer_prepostprocess_dropout=0.1,exact_sums=2"
    assert trainer(check_layout=True, hparams=hparams, **MESH) == 0
    said = capfd.readouterr().out
    assert re.search("Shrunk: .*d_ff 64 -> 4.*num_hidden_layers 6 -> 2.*targets 512 -> 32", said)
    assert re.search(r"gradient +layer_01/feed_forward/input .*d_ff=4/model", said)
    assert re.search(r"update +layer_01/feed_forward/input/adam_v .*d_ff=4/model", said)
    assert re.search(r"mask +layer_01/feed_forward/dropout", said)
    assert "agree to 1e-12" in said
    assert not (tmp_path / "run").exists()


@pytest.fixture
def _wrong_einsum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the feed-forward part of the second layer omit its sum over the mesh."""
    right = rules.RULES[mtf.EinsumOperation]

    def wrong(op: mtf.EinsumOperation, lowering: Lowering) -> None:
        right(op, lowering)
        (y,) = op.outputs
        if op.name.startswith("layer_01/feed_forward") and "gradients" not in op.name:
            part, _ = lowering.partial_sum(y)
            lowering.set_slice(y, part)

    monkeypatch.setitem(rules.RULES, mtf.EinsumOperation, wrong)


@pytest.mark.usefixtures("_wrong_einsum")
@pytest.mark.slow
def test_an_operation_that_is_wrong_is_named(trainer, capfd):
    assert trainer(check_layout=True, hparams="num_hidden_layers=2", **MESH) == 1
    said = capfd.readouterr()
    assert re.search(
        r"The first tensor that differs is layer_01/feed_forward/\S+ \[batch=4/data, length=4,"
        r" d_model=4\], by \S+, after the operation layer_01/feed_forward/\S+ \(EinsumOperation\),"
        r" computed from .*layer_01/feed_forward/output \[d_ff=4/model, d_model=4\], which agree",
        said.out,
    )
    assert "the layout does not compute what one device computes" in said.err


def test_several_processes_are_refused(trainer, capfd):
    given = {"num_processes": 2, "process_id": 0, "coordinator": "localhost:1"}
    assert trainer(check_layout=True, **given, **MESH) == 2
    assert "--check_layout needs a single process" in capfd.readouterr().err
