"""`t2tp_tune` with a program that only pretends to train."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from t2tp import registry
from t2tp.trainer.cli import tune
from t2tp.trainer.cli.programs import t2tp_tune as main
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from tests.trainer.command import flags_of, refused, wrong_flags

FAKE = ("tests.trainer.cli.fake_trainer",)
PROBLEM = "--problem=languagemodel_python_stdlib"
FLAGS = ["--", PROBLEM, "--hparams_set=transformer_lm_tiny", "--data_dir=d", "--model=m"]
WRONG = [
    (["--", "--trial=3"], "--trial is among the flags after --, and t2tp_tune sets it itself"),
    (["--", "--modle=m"], "unknown flag 'modle': did you mean --model"),
    ([], "FLAGS is missing: flags of t2tp_trainer"),
    (FLAGS[:-1], "--model is missing"),
    ([*FLAGS, "--hparams=weight_decay=0.1"], "--hparams sets weight_decay, which the ranged set"),
]


OWN = {"hparams_range": "basic1", "output_dir": "o"}


@wrong_flags("t2tp_tune")
def test_wrong_flags_are_one_sentence(capsys, tmp_path, monkeypatch, flags, says):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "t2tp_tune", *flags_of(OWN | flags), *FLAGS)
    assert says in said and "PW" not in said


@pytest.mark.parametrize(("trainer", "says"), WRONG)
def test_wrong_flags_of_the_trainer_are_one_sentence(capsys, tmp_path, monkeypatch, trainer, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, "t2tp_tune", *flags_of(OWN), *trainer)


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Runs a search in this process and returns its exit code."""
    monkeypatch.setattr(tune, "PROGRAM", FAKE)

    def run(*flags: str, trainer: tuple[str, ...] = ()) -> int:
        own = ["t2tp_tune", "--hparams_range=basic1", f"--output_dir={tmp_path}"]
        return main([*own, *flags, *FLAGS, *trainer])

    return run


@pytest.mark.slow
def test_two_trials_from_beginning_to_end(search, tmp_path, capfd):
    assert search("--trials=2", "--sampler=random") == 0
    shown = capfd.readouterr()
    lines = shown.out.splitlines()
    found = sorted(line.partition(": ")[2].split("  ")[0] for line in lines[:2])
    assert found == [f"{tmp_path}/trial-0000", f"{tmp_path}/trial-0001"]
    losses = [float(line.split()[1]) for line in lines[:2]]
    assert losses == sorted(losses)
    assert len(lines) == 2
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == ["t2tp_tune"] * 2
    for trial in range(2):
        drawn = registry.ranged_hparams("basic1").sample_trial(trial)["learning_rate_constant"]
        evaluations = EvaluationRecord(tmp_path / f"trial-{trial:04d}" / "eval").by_step()
        assert evaluations[2]["rate"] == drawn


@pytest.mark.slow
def test_a_search_that_is_done_is_not_run_again(search, capfd):
    assert search("--trials=2") == 0
    first = capfd.readouterr()
    assert search("--trials=2") == 0
    second = capfd.readouterr()
    assert (second.out, second.err) == (first.out, "")
    assert search("--trials=3") == 0
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_three_failures_before_any_success_end_the_search(search, capfd):
    assert search("--trials=9", trainer=("--model=fails",)) == 1
    said = capfd.readouterr().err.splitlines()
    assert [line.endswith("failed: exit code 1") for line in said].count(True) == 3
    assert search("--trials=3") == 0  # The same points, without the mistake.
    assert "failed" not in capfd.readouterr().out


@pytest.mark.slow
def test_a_search_fails_if_all_its_trials_failed(search, capfd):
    assert search("--trials=2", trainer=("--model=fails",)) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["failed, exit code 1"] * 2


@pytest.mark.slow
def test_trials_of_two_metrics_are_compared_by_both(search, tmp_path, capfd):
    flags = ["--trials=5", "--parallel_trials=2", "--sampler=random"]
    assert search(*flags, "--metric=min:loss,max:accuracy") == 0
    lines = capfd.readouterr().out.splitlines()
    marked = [line.startswith("* ") for line in lines[:5]]
    assert marked == sorted(marked, reverse=True) and marked[0]
    headings = [line.split(":")[0] for line in lines[5:]]
    assert headings == ["importance for loss", "importance for accuracy"]
    assert (tmp_path / "importance-accuracy.html").exists()


def test_parallel_trials_have_cores_of_their_own(search, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    assert search("--trials=2", "--parallel_trials=2", "--devices_per_trial=1") == 0
    used = {(tmp_path / f"trial-{n:04d}" / "cores").read_text() for n in range(2)}
    assert used <= {str(core) for core in cores} and len(used) == 2


def test_tensorboard_compares_the_trials(search, tmp_path):
    assert search("--trials=1") == 0
    events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    (content,) = events.PluginTagToContent("hparams").values()
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    drawn = registry.ranged_hparams("basic1").sample_trial(0)
    assert {each.name for each in experiment.hparam_infos} == set(drawn)
    (metric,) = experiment.metric_infos
    assert (metric.name.group, metric.name.tag) == ("eval", "loss")


def _start(tmp_path: Path, *flags: str, trainer: tuple[str, ...] = ()) -> subprocess.Popen:
    code = f"from t2tp.trainer.cli import programs, tune; tune.PROGRAM = {FAKE}; "
    code += "raise SystemExit(programs.t2tp_tune())"
    own = ["--hparams_range=basic1", f"--output_dir={tmp_path}"]
    return subprocess.Popen(
        [sys.executable, "-c", code, *own, *flags, *FLAGS, *trainer],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_trial_which_saves(tmp_path, number):
    with _start(tmp_path, trainer=("--model=waits",)) as process:
        assert process.stdout.readline() == b"training\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert out == b"saved\n"
    *reported, last = err.splitlines()
    assert b"interrupted; started again, the search goes on" in last
    assert all(line.startswith(b"t2tp_tune: ") for line in reported), err


@pytest.mark.ci_only
@pytest.mark.slow
def test_killed_processes_lose_no_trial_and_none_is_run_twice(tmp_path, study_address):
    """Three processes share a study; two of them are killed, and not started again."""
    flags = ("--trials=6", "--lost_after_seconds=2", "--sampler=random", f"--study={study_address}")
    trainer = ("--model=slow", "--train_steps=8")
    started = [_start(tmp_path, *flags, trainer=trainer) for _ in range(3)]
    victims = random.Random(3).sample(started, 2)
    while len(list(tmp_path.glob("trial-*/steps"))) < 3:
        time.sleep(0.05)
    for victim in victims:
        time.sleep(0.4)
        victim.kill()
    (survivor,) = (each for each in started if each not in victims)
    out, err = survivor.communicate(timeout=300)
    for victim in victims:
        victim.communicate()
    assert survivor.returncode == 0, err
    assert len([line for line in out.splitlines() if line.startswith(b"loss")]) == 6
    for trial in range(6):
        steps = (tmp_path / f"trial-{trial:04d}/steps").read_text().split()
        assert [int(step) for step in steps] == list(range(1, 9))
