import contextlib
import json
import multiprocessing
import os
import tempfile

import pytest

from t2tp import registry
from t2tp.hparam import HParams, describe_differences
from t2tp.trainer import run_yaml
from t2tp.trainer.inference import files
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.run_files import OtherRunError, RunFileError, SavedRun
from t2tp.trainer.run_yaml import RunSettings


def test_what_was_written_is_read_back(tmp_path):
    hparams = HParams(d_model=8, layout="batch:data")
    flags = {"model": "m", "problem": "p", "train_steps": 3}
    assert run_files.read(tmp_path / "run") is None
    run_files.write(tmp_path / "run", hparams, flags)
    assert run_files.read(tmp_path / "run") == SavedRun(hparams, flags)
    assert sorted(os.listdir(tmp_path / "run")) == ["run.yaml"]


CASES = [
    (b"{", r"run\.yaml, line 2 is not YAML"),
    (b"[1]", r"run\.yaml is a list, and must be an object of names and values"),
    (b"\xff{}", r"run\.yaml is not UTF-8"),
    (b"model: [5]", r"run\.yaml: model is a list, and must be text"),
    (b"flags: {train_steps: true}", r"run\.yaml: train_steps is True, and must be a whole number"),
    (b"model: transformer_lm\nhparams: {d_ff: x}", r"run\.yaml: d_ff=x: expected int"),
]


@pytest.mark.parametrize(("content", "said"), CASES)
def test_a_damaged_file_is_named(tmp_path, content, said):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(RunFileError, match=f"{said}.*; put a copy of the file back"):
        run_files.read(tmp_path)


def test_a_lost_file_does_not_make_a_run_a_new_one(tmp_path):
    (tmp_path / "checkpoints/step-00000001").mkdir(parents=True)
    for check in (run_files.read_run, lambda path: run_files.check_known(path, None)):
        with pytest.raises(RunFileError, match=r"holds checkpoints but no run\.yaml"):
            check(tmp_path)


BEATS = [
    ({"step": 3, "state": "ended"}, True),
    ({"step": 20, "state": "training"}, True),
    ({"step": 19, "state": "training"}, False),  # The first checkpoint may be unfinished.
    ({"step": 0, "state": "ended"}, False),
    ({"step": "x"}, False),
]


@pytest.mark.parametrize(("beat", "is_lost"), BEATS)
def test_a_run_that_has_lost_its_checkpoints_does_not_start_again(tmp_path, beat, is_lost):
    run_files.check_not_trained(str(tmp_path), 10)
    (tmp_path / "heartbeat.json").write_text(json.dumps(beat))
    lost = pytest.raises(RunFileError, match=f"has no checkpoint, .* to step {beat['step']}:")
    with lost if is_lost else contextlib.nullcontext():
        run_files.check_not_trained(str(tmp_path), 10)


def test_a_directory_of_another_run_is_refused(tmp_path):
    saved = SavedRun(HParams(), {"model": "resnet", "problem": "images"})
    run_files.check_same_run("/runs/1", saved, "resnet", "images")
    for model, problem in (("lm", "images"), ("resnet", "text")):
        with pytest.raises(OtherRunError, match="/runs/1 holds a run of model resnet on problem"):
            run_files.check_same_run("/runs/1", saved, model, problem)


def test_going_on_takes_saved_values_and_new_declarations():
    saved, preset = HParams(d_model=8, old=1), HParams(d_model=16, new=2)
    resumed = run_files.resumed_hparams(saved, preset)
    assert resumed.values() == {"d_model": 8, "new": 2, "old": 1}
    assert preset.d_model == 16


def test_going_on_takes_the_default_of_what_a_preset_sets_since_then(tmp_path):
    saved = registry.hparams("llama_3b")
    preset = saved.copy()
    values = saved.values()
    del values["rotary_scaling_factor"]  # As in a run older than this hparam.
    run_yaml.write(tmp_path / "run.yaml", RunSettings({"hparams_set": "llama_3b"}, values))
    saved = run_files.read(tmp_path).hparams
    assert preset.rotary_scaling_factor == 32
    assert run_files.resumed_hparams(saved, preset).rotary_scaling_factor == 1
    assert describe_differences(saved, preset, {}) == [
        "rotary_scaling_factor: not declared in the saved run, 32.0 in the hparams set, 1.0 in its"
        " declaration; using 1.0 from its declaration"
    ]


def check_as_nobody(directory):
    """Checks as another user, because root may write everywhere."""
    if os.geteuid() == 0:
        os.setuid(65534)
    files.check_can_be_written(f"{directory}/pipe")  # Like /dev/null, a pipe is not replaced.
    said = f"output_dir {directory}/run: {directory} cannot be written"
    with pytest.raises(PermissionError, match=said):
        run_files.check_writable(f"{directory}/run")


def test_a_read_only_directory_is_refused():
    with tempfile.TemporaryDirectory() as directory:  # Others may not enter `tmp_path`.
        os.mkfifo(f"{directory}/pipe")
        os.chmod(directory, 0o555)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=check_as_nobody, args=(directory,))
        process.start()
        process.join()
        os.chmod(directory, 0o755)
    assert process.exitcode == 0
