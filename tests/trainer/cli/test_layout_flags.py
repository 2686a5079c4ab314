"""`--check_layout` compares the run's layout with one device; `--explain_layout` prints it."""

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


def test_it_prints_draws_and_leaves(trainer, tmp_path, capfd):
    assert trainer(explain_layout=True, **MESH) == 0
    said = capfd.readouterr()
    for expected in (
        "mesh data:2;model:2, layout batch:data;heads:model;d_ff:model;vocab:model",
        "layer_00/feed_forward/input  [d_model=16, d_ff=32/model]",
        "slice [16, 16] float32, 1 KiB per device, 2 copies of each",
        "adam_m, adam_v: float32, 2 KiB per device",
        "Collectives of a step",
        "allreduce over model  ",
    ):
        assert expected in said.out
    assert str(tmp_path / "run/layout.html") in said.err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["layout.html"]
    page = (tmp_path / "run/layout.html").read_text()
    assert "layer_00/feed_forward/input" in page and page.rstrip().endswith("</html>")


def test_it_explains_a_mesh_of_which_there_are_no_devices(trainer, tmp_path, capfd):
    assert trainer(explain_layout=True, mesh_shape="data:8;model:4;other:2") == 0
    said = capfd.readouterr()
    assert "64 processors, abstract" in said.out
    assert "Warning: Mesh axis 'other' of size 2 splits nothing" in said.out


@pytest.mark.slow
def test_training_goes_on_as_if_nothing_had_been_explained(trainer, tmp_path, capfd):
    assert trainer(schedule="train", train_steps=2, hparams="d_ff=64", **MESH) == 0
    checkpoints = sorted((tmp_path / "run/checkpoints").rglob("*"))
    before = {path: path.read_bytes() for path in checkpoints if path.is_file()}
    capfd.readouterr()
    assert trainer(explain_layout=True, train_steps=2, problem=None, model=None) == 0
    assert "d_ff=64/model" in capfd.readouterr().out  # As in the saved run.
    after = sorted((tmp_path / "run/checkpoints").rglob("*"))
    assert after == checkpoints and all(path.read_bytes() == b for path, b in before.items())
    assert trainer(schedule="train", train_steps=3) == 0
    assert "resuming from the checkpoint of step 2" in capfd.readouterr().err
