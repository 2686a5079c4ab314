"""`t2tp_eval` as people type it (in this process)."""

import json
from pathlib import Path

import pytest

from t2tp.trainer.cli.programs import t2tp_eval as main
from tests.trainer.tiny_experiment import experiment


def evaluate(capfd, **flags: object) -> tuple[int, list[dict], str]:
    """(exit code, the lines of JSON, what it said)."""
    capfd.readouterr()
    code = main(["t2tp_eval", *(f"--{name}={value}" for name, value in flags.items())])
    said = capfd.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir) -> Path:
    """A run with checkpoints of steps 2 and 4."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    for steps in (2, 4):
        experiment(directory, data_dir, train_steps=steps).train()
    return directory


@pytest.mark.slow
def test_one_several_or_all_checkpoints_on_any_mesh(run, data_dir, capfd):
    where = {"output_dir": run, "data_dir": data_dir}
    before = sorted(run.rglob("*"))
    code, latest, said = evaluate(capfd, **where)
    assert code == 0
    assert [row["step"] for row in latest] == [4]
    assert latest[0]["checkpoint"].endswith("step-00000004")
    assert said.splitlines()[-2].split()[:2] == ["step", "loss"]
    assert said.splitlines()[-1].split()[:2] == ["4", f"{latest[0]['loss']:.4f}"]

    paths = ",".join(str(run / f"checkpoints/step-0000000{step}") for step in (4, 2))
    _, both, _ = evaluate(capfd, checkpoint_path=paths, mesh_shape="data:2;model:2", **where)
    _, whole, _ = evaluate(capfd, checkpoint_path="all", hparams="batch_size=24", **where)
    assert [row["step"] for row in both] == [4, 2]
    for one, other in zip(both, whole[::-1], strict=True):
        assert one.pop("checkpoint") == other.pop("checkpoint")
        assert one == pytest.approx(other, rel=1e-5)
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"output_dir": "/nowhere"}, "/nowhere holds no run"),
        ({"split": "tset"}, "did you mean test"),
        ({"checkpoint_path": "/nowhere"}, "/nowhere does not exist"),
        ({"hparams": "d_ff=64"}, "does not fit the model's variables"),
    ],
)
def test_wrong_input_is_one_sentence(run, data_dir, capfd, flags, says):
    code, rows, said = evaluate(capfd, **{"output_dir": run, "data_dir": data_dir, **flags})
    assert (code, rows) == (2, [])
    assert said.startswith("t2tp_eval: ") and says in said
    assert len(said.splitlines()) == 1
