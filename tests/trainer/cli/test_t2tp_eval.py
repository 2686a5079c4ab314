"""`t2tp_eval` as people type it (in this process)."""

import json

import pytest

from tests.trainer.command import call, refused, wrong_flags


def evaluate(capfd, **flags: object) -> tuple[int, list[dict], str]:
    """Returns the exit code, the lines of JSON, and stderr."""
    capfd.readouterr()
    code = call("t2tp_eval", **flags)
    said = capfd.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


@pytest.mark.slow
def test_one_several_or_all_checkpoints_on_any_mesh(trained, data_dir, capfd):
    where = {"output_dir": trained, "data_dir": data_dir}
    before = sorted(trained.rglob("*"))
    code, latest, said = evaluate(capfd, **where)
    assert code == 0
    assert [row["step"] for row in latest] == [2]
    assert latest[0]["checkpoint"].endswith("step-00000002")
    assert said.splitlines()[-2].split()[:2] == ["step", "loss"]
    assert said.splitlines()[-1].split()[:2] == ["2", f"{latest[0]['loss']:.4f}"]

    paths = ",".join(str(trained / f"checkpoints/step-0000000{n}") for n in (2, 1))
    _, both, _ = evaluate(capfd, checkpoint_path=paths, mesh_shape="data:2;model:2", **where)
    _, whole, _ = evaluate(capfd, checkpoint_path="all", hparams="batch_size=24", **where)
    assert [row["step"] for row in both] == [2, 1]
    for one, other in zip(both, whole[::-1], strict=True):
        assert one.pop("checkpoint") == other.pop("checkpoint")
        assert one == pytest.approx(other, rel=1e-5)
    assert sorted(trained.rglob("*")) == before


@wrong_flags("t2tp_eval")
def test_wrong_input_is_one_sentence(trained, data_dir, capfd, flags, says):
    where = {"output_dir": trained, "data_dir": data_dir}
    assert says in refused(capfd, "t2tp_eval", **{**where, **flags})
