"""`t2tp_trainer --explain_layout` prints how a mesh splits the training, and does not train."""

import pytest

MESH = {"mesh_shape": "data:2;model:2"}


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


WRONG = {
    "data": ({"data_dir": "/nowhere"}, "t2tp_datagen --problem="),
    "folder": ({"output_dir": "/proc/version/run"}, "is not a directory"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence_and_touches_nothing(trainer, tmp_path, capfd, name):
    flags, says = WRONG[name]
    assert trainer(explain_layout=True, **{**MESH, **flags}) == 2
    said = capfd.readouterr()
    assert said.out == "" and says in said.err and said.err.startswith("t2tp_trainer: ")
    assert not (tmp_path / "run").exists()
