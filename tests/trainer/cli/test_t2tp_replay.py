"""`t2tp_replay` as people type it (in this process)."""

import json
import re
import shutil

import numpy as np
import pytest

from t2tp import registry
from t2tp.trainer.cli.programs import t2tp_replay, t2tp_trainer
from tests.files import flip
from tests.trainer import small_run
from tests.trainer.tiny_problem import LanguagemodelEncodings

STEPS = 8
PLANTED_STEP, PLANTED_ROW = 6, 5


class PlantedStream:
    """A stream with a row of one repeated token."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def with_batch_sizes(self, batch_sizes):
        return PlantedStream(self._stream.with_batch_sizes(batch_sizes))

    def __getitem__(self, step):
        lazy = self._stream[step]
        batch = {name: np.array(x[tuple(map(slice, x.shape))]) for name, x in lazy.items()}
        if step == PLANTED_STEP - 1:
            batch["targets"][PLANTED_ROW] = 7
        return batch


@registry.register_problem
class LanguagemodelPlanted(LanguagemodelEncodings):
    """The encodings, with a planted row."""

    def stream(self, *args, **kwargs):
        return PlantedStream(super().stream(*args, **kwargs))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(flags of the run, its log): checkpoints of steps 5 and 8, trained on data:2;model:2."""
    directory = tmp_path_factory.mktemp("replay")
    where = {"output_dir": directory / "run", "data_dir": directory / "data"}
    flags = small_run.flags(
        where["output_dir"],
        where["data_dir"],
        problem="languagemodel_planted",
        generate_data=True,
        hparams="batch_size=16",
        train_steps=STEPS,
        save_checkpoints_steps=5,
        log_json=directory / "log",
    )
    assert t2tp_trainer(["t2tp_trainer", *flags]) == 0
    lines = map(json.loads, (directory / "log").read_text().splitlines())
    return where, {x["step"]: x for x in lines if x["event"] == "report"}


def replayed(where, capfd, **flags):
    """(exit code, rows, summary)."""
    capfd.readouterr()
    given = {**where, **flags}
    code = t2tp_replay(["t2tp_replay", *(f"--{name}={x}" for name, x in given.items())])
    said = capfd.readouterr()
    return code, [json.loads(line) for line in said.out.splitlines()], said.err


@pytest.mark.parametrize(("step", "begun_from"), [(1, 0), (5, 0), (6, 5), (STEPS, 5)])
def test_a_replayed_step_is_the_runs(run, capfd, step, begun_from):
    where, log = run
    before = sorted(where["output_dir"].rglob("*"))
    code, rows, summary = replayed(where, capfd, step=step)
    assert code == 0
    loss, norm = (log[step][name] for name in ("loss", "gradient_norm"))
    assert f"step {step}, replayed from step {begun_from}: " in summary
    for name, expected in (("loss", loss), ("gradient_norm", norm)):
        (value,) = re.findall(rf"{name} ([\d.]+)", summary)
        assert float(value) == pytest.approx(expected, rel=1e-4)
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(loss, rel=1e-5)
    norms = [row["gradient_norm"] for row in rows]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > norm  # Of different directions, their mean is shorter than the longest.
    assert sorted(where["output_dir"].rglob("*")) == before


def test_a_damaged_checkpoint_is_skipped(run, capfd, tmp_path):
    copied = shutil.copytree(run[0]["output_dir"], tmp_path / "run")
    for path in (copied / f"checkpoints/step-{STEPS:08d}").glob("*.data-*"):
        flip(path)
    code, _, summary = replayed({**run[0], "output_dir": copied}, capfd, step=STEPS + 1)
    assert code == 0
    assert f"step {STEPS + 1}, replayed from step 5: " in summary


def test_a_planted_row_comes_first(run, capfd):
    _, rows, _ = replayed(run[0], capfd, step=PLANTED_STEP)
    assert rows[0]["row"] == PLANTED_ROW


def test_without_a_row_the_loss_is_the_mean_of_the_others(run, capfd):
    where, _ = run
    _, rows, _ = replayed(where, capfd, step=3)
    left_out = [rows[0]["row"], rows[-1]["row"]]
    flags = {"step": 3, "without_rows": ",".join(map(str, left_out))}
    _, others, summary = replayed(where, capfd, **flags)
    assert {row["row"] for row in others} == {row["row"] for row in rows} - {*left_out}
    mean = np.mean([row["loss"] for row in rows if row["row"] not in left_out])
    (loss,) = re.findall(r"loss ([\d.]+)", summary)
    assert float(loss) == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"mesh_shape": "data:2"}, "data:2"),
        ({"without_rows": "99"}, "rows 0 to 15"),
        ({"without_rows": ",".join(map(str, range(16)))}, "no row is left"),
        ({"without_rows": "x"}, "'x'"),
    ],
)
def test_what_cannot_be_replayed_is_refused(run, capfd, flags, said):
    code, rows, error = replayed(run[0], capfd, step=1, **flags)
    assert (code, rows) == (2, [])
    assert said in error
