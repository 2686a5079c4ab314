"""Measurements of a machine become a cluster file, which the planner reads."""

import pytest

import t2tp
from t2tp.planner import ClusterFile, ClusterFileError
from t2tp.program.abstract_program import AbstractProgram
from t2tp.step.lowered import LoweredStep
from t2tp.step.work import COMPUTE_BOUND
from t2tp.trainer.calibration import measure
from t2tp.trainer.calibration.samples import SAMPLES
from t2tp.trainer.cli.programs import t2tp_calibrate
from tests.models.small_lm import make_hparams


class Invented(measure.Measured):
    """A machine with two cores, whose rates are invented."""

    def _seconds(self, name, build, mesh=""):
        return 1e-3 if not mesh else 2e-3

    def _measure(self, sample):
        self.rates[sample.kind] = 1e11 if sample.kind in COMPUTE_BOUND else 1e10


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_a_sample_has_its_own_kind_of_work_and_kinds_of_earlier_samples(sample):
    """Without the seconds of earlier kinds, the seconds of the sample's own kind remain."""
    before = [each.kind for each in SAMPLES[: SAMPLES.index(sample) + 1]]

    def works(count):
        step = measure._step(lambda mesh: sample.build(mesh, sample.size, count))
        program = AbstractProgram(step, {"one": t2tp.Feature("one:1")}, layout=t2tp.Layout("", ""))
        return LoweredStep.from_program(program).work

    kinds = {work.kind for work in works(2)}
    assert sample.kind in kinds and kinds <= set(before)
    number = [sum(n for w, n in works(c).items() if w.kind == sample.kind) for c in (2, 4)]
    assert number[1] > number[0]


@pytest.mark.slow
def test_a_machine_has_plausible_rates(monkeypatch):
    for name, value in {"_ROUNDS": 1, "_CALLS": 1, "_WANTED": 0.02}.items():
        monkeypatch.setattr(measure, name, value)
    measured = measure.Measured()
    assert len(list(measured.run())) == measure.steps()
    assert measured.rates.keys() == {sample.kind for sample in SAMPLES}
    assert all(1e7 < rate < 1e14 for rate in (*measured.rates.values(), measured.link))
    assert measured.rates["elementwise"] < 1e13
    assert 0 <= measured.launch < 1e-3 and measured.host < 1e-2 and 0 < measured.latency < 0.1


def test_a_measured_machine_is_a_cluster_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("t2tp.trainer.cli.calibrate.Measured", Invented)
    assert t2tp_calibrate(["t2tp_calibrate"]) == 0
    said = capfd.readouterr()
    assert f"{measure.steps()}/{measure.steps()}" in said.err
    assert "t2tp_plan --cluster=this_machine.toml" in said.out
    cluster = ClusterFile.load("this_machine")
    assert cluster.device.cores == measure.cores() and cluster.device.memory > 1e8
    assert cluster.peak("float32") == pytest.approx(1e11)
    assert cluster.software.shares.keys() == {sample.kind for sample in SAMPLES}
    plans = [
        t2tp.plan("transformer_lm", make_hparams(mesh_shape=mesh), cluster=cluster, vocab_size=30)
        for mesh in ("", "data:2")
    ]
    assert 0 < plans[0].seconds < plans[1].seconds  # Devices share cores, and communicate.


def test_wrong_flags_are_one_sentence(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert t2tp_calibrate(["t2tp_calibrate", "--output=machine"]) == 2
    assert "ends in .toml" in capfd.readouterr().err
    with pytest.raises(ClusterFileError, match="t2tp_calibrate"):
        ClusterFile.load("this_machine")
