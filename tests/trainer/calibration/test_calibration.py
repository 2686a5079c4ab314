"""Measurements of a machine become a cluster file, which the planner reads."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest

import t2tp
from t2tp.mesh.layout_text import parse_mesh_shape
from t2tp.planner import ClusterFile, ClusterFileError
from t2tp.planner.collective_cost import CollectiveCost
from t2tp.planner.compute_cost import ComputeCost
from t2tp.planner.curves import seconds_at
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step.lowered import LoweredStep
from t2tp.step.work import COMPUTE_BOUND, FORWARD, Traffic, Work
from t2tp.trainer.calibration import machine, worker
from t2tp.trainer.calibration.samples import SAMPLES
from t2tp.trainer.calibration.toml_text import toml_text
from t2tp.trainer.cli.programs import t2tp_calibrate
from tests.models.small_lm import make_hparams
from tests.patience import wait_until
from tests.trainer.calibration import tiny_machine
from tests.trainer.calibration.tiny_machine import FOUND, POINTS


def measured(monkeypatch, cores=2):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    return ClusterFile.from_toml(toml_text(machine.cluster_table(FOUND)), "measured")


def test_a_measured_machine_is_a_cluster_file(monkeypatch):
    cluster = measured(monkeypatch)
    assert cluster.device.cores == 2 and cluster.device.memory > 1e8
    assert len(cluster.software.curves) == 6 and len(cluster.software.collectives) == 3
    assert cluster.software.curves[0].points == tuple(map(tuple, POINTS))
    assert cluster.peak("float32") == pytest.approx(1e9)


def test_seconds_between_two_sizes_lie_between_theirs():
    points = tuple(map(tuple, POINTS))
    for size, seconds, spread in points:
        assert seconds_at(points, size) == (pytest.approx(seconds), spread)
    sizes = [10.0**x for x in range(10)]
    found = [seconds_at(points, size)[0] for size in sizes]
    assert found == sorted(found)
    assert seconds_at(points, 1.0)[0] == 1e-5
    assert seconds_at(points, 1e9)[0] == pytest.approx(1.0, rel=0.02)


def test_more_devices_than_cores_take_turns(monkeypatch):
    cluster = measured(monkeypatch)
    work = Work("product", FORWARD, 1, "float32", flops=1e5, num_bytes=1.0)
    seconds = {n: ComputeCost(cluster, n).seconds(work) for n in (1, 2, 4, 8)}
    assert seconds == pytest.approx({1: 1e-4, 2: 2e-4, 4: 4e-4, 8: 8e-4})


def test_a_collective_costs_what_was_measured_of_its_group(monkeypatch):
    cluster = measured(monkeypatch)
    reduce_ = Traffic("allreduce", ("data",), FORWARD, 1, 100_000, True)

    def seconds(mesh, processes=1):
        placed = dataclasses.replace(cluster, processes=processes)
        return CollectiveCost(placed, parse_mesh_shape(mesh)).seconds(reduce_)

    assert seconds("data:2") == pytest.approx(1e-4)
    assert seconds("data:4") == pytest.approx(3e-4)
    assert seconds("data:2", processes=2) == pytest.approx(7e-4)
    # Four processors in two processes: the last axis is inside a process.
    assert seconds("data:2;model:2", processes=2) == pytest.approx(2 * 7e-4)
    model = dataclasses.replace(reduce_, axes=("model",))
    placed = dataclasses.replace(cluster, processes=2)
    cost = CollectiveCost(placed, parse_mesh_shape("data:2;model:2"))
    assert cost.seconds(model) == pytest.approx(2 * 1e-4)


def test_a_plan_of_a_measured_machine_has_the_interval_of_its_curves(monkeypatch):
    cluster = measured(monkeypatch)
    plan = t2tp.plan("transformer_lm", make_hparams(), cluster=cluster, vocab_size=30)
    errors = [cost.error for cost in plan.costs]
    assert all(cost.error >= 0.05 * cost.seconds for cost in plan.costs)
    whole = math.hypot(*_by_group(plan), cluster.software.residual * plan.seconds)
    assert plan.interval[1] - plan.seconds == pytest.approx(whole, rel=0.01)
    assert plan.seconds < plan.interval[1] <= plan.seconds + sum(errors)


def _by_group(plan):
    """Returns the error of matmuls, and of all other costs, which have separate constants."""
    compute = sum(c.error for c in plan.costs if c.kind in COMPUTE_BOUND)
    return compute, sum(c.error for c in plan.costs) - compute


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_a_sample_consists_of_its_kind_and_of_those_before_it(sample):
    """Without the seconds of earlier kinds, the seconds of the sample's own kind remain."""
    before = [each.kind for each in SAMPLES[: SAMPLES.index(sample) + 1]]
    size = sample.sizes[0]

    def works(count):
        def step(mesh, features):
            return {"last": sample.build(mesh, size, count)}

        program = AbstractProgram(step, {"one": t2tp.Feature("one:1")}, layout=t2tp.Layout("", ""))
        return LoweredStep.from_program(program).work

    kinds = {work.kind for work in works(2)}
    assert sample.kind in kinds and kinds <= set(before)
    number = [sum(n for w, n in works(c).items() if w.kind == sample.kind) for c in (2, 4)]
    assert number[1] > number[0]


@pytest.mark.slow
def test_a_sample_is_timed():
    timed = worker.Timed(t2tp.connect(1))
    sample = SAMPLES[0]
    points = [worker._point(timed, sample, size, t2tp.Layout("", ""), {}) for size in (16, 4096)]
    (small, fast, _), (large, slow, _) = points
    # The size is a mean over a chain of operations: its last operation moves less, and its length
    # depends on the measured seconds.
    assert large == pytest.approx(256 * small, rel=0.01) and 0 < fast < slow < 1


def test_of_disturbed_calls_the_shortest_counts_as_it_is(monkeypatch):
    """Processes with a lower priority on idle cores do not make calls any faster."""
    seconds = iter([9.0, 9.0, 5.0, 6.0, 7.0, 8.0, 4.0, 4.5, 5.0, 5.5, 6.0, 6.0, 6.0, 6.0])
    monkeypatch.setattr(worker.Watch, "others", lambda self: 1.0)
    assert worker.best_block(lambda: next(seconds), True) == ([4.0, 4.5, 5.0, 5.5], 1.0)


@pytest.mark.parametrize(("others", "least"), [(0.0, 0.0), (0.5, 1.0), (0.2, 0.25)])
def test_a_busy_machine_widens_the_spread(others, least, monkeypatch):
    monkeypatch.setattr(worker.Timed, "_times", lambda self, *_: ([1.0] * 4, others))
    timed = worker.Timed(t2tp.connect(1))
    _, spread = timed.seconds(lambda mesh, count: None, 2, t2tp.Layout("", ""))
    assert spread == pytest.approx(least)
    assert timed.disturbed == [others]


def fake_measure(piece, progress):
    if piece.processes > 1:
        raise machine.CalibrationError("gone")
    for _ in range(piece.points):
        progress()
    curve = {"devices": piece.devices, "points": POINTS}
    curves = [{"kind": kind, **curve} for kind in ("product", "elementwise")]
    return {"curves": curves, "collectives": [], "disturbed": [0.0, 0.4]}


def test_what_is_measured_is_written_as_it_comes(tmp_path, monkeypatch, capfd):
    """The last of three measurements fails; --append does not repeat the first two."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "measure", fake_measure)
    arguments = ["t2tp_calibrate", "--output=found.toml", "--devices=2,1", "--processes=2"]
    assert t2tp_calibrate(arguments) == 1
    assert "gone" in capfd.readouterr().err
    found = ClusterFile.load("found.toml").software.curves
    assert [(each.kind, each.devices) for each in found] == [
        ("product", 1),
        ("elementwise", 1),
        ("product", 2),
        ("elementwise", 2),
    ]


def test_progress_and_disturbance_are_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "measure", fake_measure)
    assert t2tp_calibrate(["t2tp_calibrate", "--devices=1", "--processes="]) == 0
    said = capfd.readouterr()
    points = machine.Piece(1).points
    assert points > 30 and f"{points}/{points}" in said.err
    assert "up to 40% of the cores during 1 of 2 measurements" in said.err
    assert "t2tp_plan --cluster=this_machine.toml" in said.out


WRONG = {
    "no curves": (["--devices=4", "--output=found.toml"], "to measure operations"),
    "name": (["--output=machine"], "ends in .toml"),
    "devices": (["--devices=two"], "numbers such as 1,2,4"),
    "append": (["--append", "--output=none.toml"], "cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_flags_are_one_sentence(case, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, says = WRONG[case]
    assert t2tp_calibrate(["t2tp_calibrate", *arguments]) == 2
    assert says in capfd.readouterr().err


def test_this_machine_is_measured_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterFileError, match="t2tp_calibrate"):
        ClusterFile.load("this_machine")
    tiny_machine.write(tmp_path / "this_machine.toml")
    assert ClusterFile.load("this_machine").name == "this machine"


@pytest.mark.parametrize(
    "points", ["[[1, 2]]", "[]", "3", "[[2.0, 1.0, 0.1], [1.0, 1.0, 0.1]]"], ids=str
)
def test_points_of_a_file_are_checked(points, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    text = toml_text(machine.cluster_table(FOUND))
    text += f'\n[[stacks.t2tp.curves]]\nkind = "copy"\ndevices = 1\npoints = {points}\n'
    with pytest.raises(ClusterFileError, match=r"points.*(size|number)"):
        ClusterFile.from_toml(text, "wrong")


PROGRAM = (
    "from t2tp.trainer.calibration import machine; machine.__package__ = 'fake';"
    " machine.measure(machine.Piece(1), print)"
)


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_no_worker(tmp_path):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/worker.py").write_text(
        "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    )
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path)
    wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    program.kill()
    program.wait()
    state = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    wait_until(lambda: not state.exists() or state.read_text().split()[2] == "Z")
