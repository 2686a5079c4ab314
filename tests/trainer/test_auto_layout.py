"""`--mesh_shape=auto --layout=auto`: what the search finds for the devices that are there."""

from __future__ import annotations

import pytest

from t2tp.planner import ClusterFile
from t2tp.processes.process_spec import DEVICES_VARIABLE
from t2tp.trainer import auto_layout
from t2tp.trainer.cli.programs import TRAINER
from t2tp.trainer.cli.run_program import run_program
from t2tp.trainer.errors import UsageError
from tests.models.small_lm import make_hparams


def searched(devices, **values):
    hparams = make_hparams(mesh_shape="", layout="", batch_size=8, **values)
    cluster = ClusterFile.load("cpu")
    return auto_layout._search("transformer_lm", hparams, 30, devices, cluster, None)


def test_it_chooses_mesh_and_layout_and_nothing_else():
    hparams, said = searched(2, microbatches=2)
    assert hparams.mesh_shape in ("data:2", "model:2", "stage:2") and hparams.layout
    assert f"--mesh_shape='{hparams.mesh_shape}' --layout='{hparams.layout}'" in said
    before = make_hparams(mesh_shape="", layout="", batch_size=8, microbatches=2).values()
    after = hparams.values()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"mesh_shape", "layout"}


def test_devices_are_those_of_all_processes(monkeypatch):
    for name in ("TF_CONFIG", "SLURM_STEP_NUM_TASKS", DEVICES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(auto_layout, "has_gpu", lambda: False)
    assert auto_layout.device_count() == 1
    monkeypatch.setenv(DEVICES_VARIABLE, "4")
    assert auto_layout.device_count() == 4


def test_a_measured_machine_goes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto_layout, "has_gpu", lambda: False)
    assert auto_layout.this_cluster().name == "cpu"
    cpu = ClusterFile.load("cpu")
    (tmp_path / "this_machine.toml").write_text("name = ")
    with pytest.raises(ValueError, match="not TOML"):
        auto_layout.this_cluster()
    assert cpu.device.cores > 1


def test_both_are_chosen_or_none(capfd, tmp_path):
    flags = ["--problem=p", "--model=transformer_lm", "--hparams_set=transformer_lm_tiny"]
    places = [f"--output_dir={tmp_path}", f"--data_dir={tmp_path}"]
    flags[0] = "--problem=algorithmic_identity_binary40"
    code = run_program(TRAINER, ["t2tp_trainer", *flags, *places, "--mesh_shape=auto"])
    assert code == UsageError.exit_code
    assert "--mesh_shape=auto and --layout=auto belong together" in capfd.readouterr().err
