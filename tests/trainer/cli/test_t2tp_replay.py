"""`t2tp_replay` as people type it (in this process)."""

import json
import re
import shutil

import numpy as np
import pytest

from t2tp import registry
from tests.files import flip
from tests.trainer import small_run
from tests.trainer.command import call, wrong_flags
from tests.trainer.hooks.events import read_log
from tests.trainer.tiny_problem import LanguagemodelEncodings
from tests.warm_processes import tf_configs

STEPS = 50
# The kinds of planted examples; step -> row and kind of the example that is planted in it.
KINDS = ("wrong labels", "repeated", "single target")
PLANTED = {41 + n: ((7 * n + 3) % 16, KINDS[n % 3]) for n in range(6)}
STAGES = "layout=batch:data;layers:stage,num_hidden_layers=2,microbatches=2"
RUNS_MESH = "mesh_shape=data:2;model:2"
MESHES = {"data:2;model:2": "num_hidden_layers=1", "stage:2;data:2": STAGES}


class PlantedStream:
    """A stream with an unusual example in some steps."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def with_batch_sizes(self, batch_sizes):
        return PlantedStream(self._stream.with_batch_sizes(batch_sizes))

    def __getitem__(self, step):
        lazy = self._stream[step]
        batch = {name: np.array(x[tuple(map(slice, x.shape))]) for name, x in lazy.items()}
        row, kind = PLANTED.get(step + 1, (0, None))
        targets = batch["targets"][row]
        if kind == "wrong labels":
            targets[:] = np.random.default_rng(step).integers(100, 512, targets.shape)
        elif kind == "repeated":
            targets[:] = 7
        elif kind == "single target":  # Its gradient is not averaged over many targets.
            targets[0] = 400
            targets[1:] = batch["targets_segmentation"][row, 1:] = 0
        return batch


@registry.register_problem
class LanguagemodelPlanted(LanguagemodelEncodings):
    """The encodings, with planted examples."""

    def stream(self, *args, **kwargs):
        return PlantedStream(super().stream(*args, **kwargs))


def trained(directory, mesh):
    """Trains a run with checkpoints of steps 20, 40 and 50; returns its flags and its log."""
    where = {"output_dir": directory / "run", "data_dir": directory / "data"}
    hparams = f"batch_size=8,batch_size_unit=sequences_per_replica,{MESHES[mesh]}"
    more = {"problem": "languagemodel_planted", "generate_data": True, "mesh_shape": mesh}
    more |= {"hparams": f"{hparams},learning_rate_constant=0.02", "log_json": directory / "log"}
    more |= {"train_steps": STEPS, "save_checkpoints_steps": 20}
    assert call("t2tp_trainer", *small_run.flags(*where.values(), **more)) == 0
    return where, {x["step"]: x for x in read_log(directory / "log", "report")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trains a run on 2x2."""
    return trained(tmp_path_factory.mktemp("replay"), "data:2;model:2")


@pytest.fixture(scope="module")
def run_of_stages(tmp_path_factory):
    """Trains a run of a pipeline."""
    return trained(tmp_path_factory.mktemp("stages"), "stage:2;data:2")


def replayed(where, capfd, **flags):
    """Runs `t2tp_replay`, and returns the exit code, the rows and the summary."""
    capfd.readouterr()
    code = call("t2tp_replay", **{**where, **flags})
    said = capfd.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


@pytest.mark.slow
@pytest.mark.parametrize(("step", "begun_from"), [(1, 0), (20, 0), (21, 20), (STEPS, 40)])
def test_on_the_runs_mesh_a_step_is_the_runs_bit_for_bit(run, capfd, step, begun_from):
    where, log = run
    before = sorted(where["output_dir"].rglob("*"))
    code, rows, summary = replayed(where, capfd, step=step, hparams=RUNS_MESH)
    assert code == 0
    assert f"step {step}, replayed from step {begun_from}: " in summary
    assert "equal, bit for bit" in summary
    loss, norm = (log[step][name] for name in ("loss", "gradient_norm"))
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(loss, rel=1e-5)
    norms = [row["gradient_norm"] for row in rows]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > norm  # The longest gradient of a row is longer than the mean gradient.
    assert sorted(where["output_dir"].rglob("*")) == before


@pytest.mark.slow
def test_on_another_mesh_only_the_rounding_differs(run, capfd):
    _, rows, _ = replayed(run[0], capfd, step=5, hparams=RUNS_MESH)
    _, others, summary = replayed(run[0], capfd, step=5)
    assert re.search("(loss|_norm) by .*e-.* .relative.; the run has mesh data:2;model:2", summary)
    assert "rounding differs between layouts" in summary
    for row, other in zip(rows, others, strict=True):
        assert row == {
            **other,
            "loss": pytest.approx(other["loss"], rel=1e-4),
            "gradient_norm": pytest.approx(other["gradient_norm"], rel=1e-4),
        }


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped(run, capfd, tmp_path):
    copied = shutil.copytree(run[0]["output_dir"], tmp_path / "run")
    for path in (copied / f"checkpoints/step-{STEPS:08d}").glob("*.data-*"):
        flip(path)
    code, rows, summary = replayed({**run[0], "output_dir": copied}, capfd, step=STEPS)
    assert (code, len(rows)) == (0, 16)  # The whole batch of the step has 16 rows.
    assert f"step {STEPS}, replayed from step 40: " in summary


@pytest.mark.slow
def test_a_step_before_a_change_of_the_batch_size_has_its_own_batch(run, capfd, tmp_path):
    copied = shutil.copytree(run[0]["output_dir"], tmp_path / "run")
    where = {**run[0], "output_dir": copied}
    smaller = {"hparams": "batch_size=4", "train_steps": STEPS + 1}
    assert call("t2tp_trainer", **where, **smaller) == 0
    code, rows, _ = replayed(where, capfd, step=42, hparams=RUNS_MESH)
    assert (code, len(rows)) == (0, 16)
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(run[1][42]["loss"], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["run", "run_of_stages"])
@pytest.mark.parametrize("step", PLANTED)
def test_a_planted_row_comes_first(mesh, step, request, capfd):
    code, rows, summary = replayed(request.getfixturevalue(mesh)[0], capfd, step=step)
    assert code == 0, summary
    assert rows[0]["row"] == PLANTED[step][0], PLANTED[step]


@pytest.mark.ci_only
@pytest.mark.slow
def test_without_a_row_the_loss_is_the_mean_of_the_others(run, capfd):
    where, _ = run
    _, rows, _ = replayed(where, capfd, step=3)
    left_out = [rows[0]["row"], rows[-1]["row"]]
    flags = {"step": 3, "worker_gpu": 2, "without_rows": ",".join(map(str, left_out))}
    _, others, summary = replayed(where, capfd, **flags)
    assert {row["row"] for row in others} == {row["row"] for row in rows} - {*left_out}
    mean = np.mean([row["loss"] for row in rows if row["row"] not in left_out])
    (loss,) = re.findall(r"loss ([\d.]+)", summary)
    assert float(loss) == pytest.approx(mean, rel=1e-4)


@pytest.mark.slow
@wrong_flags("t2tp_replay")
def test_what_cannot_be_replayed_is_refused(run, capfd, monkeypatch, flags, says):
    if not flags:
        monkeypatch.setenv("TF_CONFIG", tf_configs(2)[0]["TF_CONFIG"])
    code, rows, error = replayed(run[0], capfd, step=1, **flags)
    assert (code, rows) == (2, [])
    assert says in error
