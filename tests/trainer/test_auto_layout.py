"""`--mesh_shape=auto --layout=auto`: the fastest layout for the machine's devices."""

import importlib.resources

import pytest
import tensorflow as tf

from t2tp import registry
from t2tp.planner import ClusterFile
from t2tp.processes.process_spec import DEVICES_VARIABLE
from t2tp.trainer import auto_layout
from t2tp.trainer.errors import UsageError
from tests.models.small_lm import make_hparams


@pytest.mark.slow
def test_it_chooses_mesh_and_layout_and_nothing_else():
    given = make_hparams(mesh_shape="", layout="", batch_size=8, microbatches=2)
    arguments = ("transformer_lm", given, 30, (), 2, ClusterFile.load("cpu"), None)
    hparams, said = auto_layout._search(*arguments)
    assert hparams.mesh_shape in ("data:2", "model:2", "stage:2") and hparams.layout
    assert f"--mesh_shape='{hparams.mesh_shape}' --layout='{hparams.layout}'" in said
    assert {name for name, *_ in given.diff(hparams)} == {"mesh_shape", "layout"}


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
    (tmp_path / "this_machine.toml").write_text("name = ")
    with pytest.raises(ValueError, match="is not TOML"):
        auto_layout.this_cluster()


CARDS = {
    "NVIDIA A100-SXM4-80GB": ("a100", 85.0e9),
    "NVIDIA A100-SXM4-40GB": ("a100", 40 << 30),
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb": ("a100", 20 << 30),
    "NVIDIA H100 80GB HBM3": ("h100", 85.0e9),
    "Tesla V100-SXM2-16GB": ("v100", 16 << 30),
    "NVIDIA L4": ("l4", 24.1e9),
}


GPUS = [*CARDS, "NVIDIA L40S", "NVIDIA A10G", "NVIDIA GeForce RTX 4090", "NVIDIA GH200 480GB"]


@pytest.mark.parametrize("name", GPUS)
def test_a_card_has_the_cluster_of_its_kind_and_its_own_memory(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    of_cores = importlib.resources.files("t2tp.planner") / "clusters/cpu.toml"
    (tmp_path / "this_machine.toml").write_text(of_cores.read_text())
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    details = {"device_name": name}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    if name in CARDS:
        cluster = auto_layout.this_cluster()
        assert (cluster.name, cluster.device.memory) == CARDS[name]
    else:
        with pytest.raises(UsageError, match=f"{name}.*this_machine.toml"):
            auto_layout.this_cluster()


@pytest.mark.slow
def test_models_with_other_hparams_are_searched_too():
    hparams = registry.hparams("mtf_resnet_tiny")
    hparams.parse("batch_size=4,batch_size_unit=sequences_per_batch")
    times = {}
    for size in (8, 64):
        arguments = ("mtf_resnet", hparams, 10, (size, size, 1), 2, ClusterFile.load("cpu"), None)
        chosen, times[size] = auto_layout._search(*arguments)
    assert times[8] != times[64]  # Images have the problem's size.
    assert chosen.mesh_shape in ("data:2", "model:2")
