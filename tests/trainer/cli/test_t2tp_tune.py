"""`t2tp_tune`: trials one after another, here of a program that does as if it trained."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp.trainer.cli import tune
from t2tp.trainer.cli.programs import t2tp_tune as main
from t2tp.trainer.cli.tune import Trial, table
from t2tp.trainer.errors import UsageError

FAKE = ("tests.trainer.cli.fake_trainer",)


def test_trials_are_ranked():
    trials = [
        Trial(n, Path(f"t{n}"), 9, {"loss": loss, "accuracy": 1 - loss})
        for n, loss in enumerate((0.5, 0.25, 0.75))
    ]
    assert table(trials, "loss", True).splitlines() == [
        "loss 0.2500 at step 9: t1",
        "loss 0.5000 at step 9: t0",
        "loss 0.7500 at step 9: t2",
    ]
    assert table(trials, "accuracy", False).splitlines()[0] == "accuracy 0.7500 at step 9: t1"
    with pytest.raises(UsageError, match="did you mean accuracy"):
        table(trials, "acuracy", False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--output_dir=o", "--", "--model=m"], "--hparams_range is missing"),
        (["--hparams_range=basic1", "--", "--model=m"], "--output_dir is missing"),
        (["--hparams_range=basic1", "--output_dir=o"], "FLAGS is missing: flags of t2tp_trainer"),
        (
            ["--hparams_range=basic1", "--output_dir=o", "--", "--trial=3"],
            "--trial is among the flags after --, and t2tp_tune sets it itself",
        ),
        (
            ["--hparams_range=basic1", "--output_dir=o", "--", "--modle=m"],
            "unknown flag 'modle': did you mean --model",
        ),
    ],
)
def test_wrong_flags_are_one_sentence(capsys, arguments, says):
    assert main(["t2tp_tune", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


FLAGS = ["--", "--problem=p", "--model=m"]


def test_two_trials_from_beginning_to_end(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tune, "PROGRAM", FAKE)
    command = ["t2tp_tune", "--hparams_range=basic1", "--trials=2", f"--output_dir={tmp_path}"]
    assert main([*command, *FLAGS]) == 0
    shown = capfd.readouterr()
    assert [line.split("  ")[:1] for line in shown.out.splitlines()] == [
        [f"loss 0.5000 at step 2: {tmp_path / 'trial-0001'}"],
        [f"loss 1.0000 at step 2: {tmp_path / 'trial-0000'}"],
    ]
    assert shown.out.count("learning_rate_constant=") == 2
    assert [line.partition(":")[0] for line in shown.err.splitlines()] == ["t2tp_tune"] * 2
    assert main([*command, *FLAGS, "--schedule_=x"]) == 2  # Before any trial.
    assert main([*command, *FLAGS, "--model=fails"]) == 1
    assert capfd.readouterr().err.endswith("t2tp_tune: trial 0 failed\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_trial_which_saves(tmp_path, number):
    code = f"from t2tp.trainer.cli import programs, tune; tune.PROGRAM = {FAKE}; "
    code += "raise SystemExit(programs.t2tp_tune())"
    flags = ["--hparams_range=basic1", f"--output_dir={tmp_path}", *FLAGS, "--model=waits"]
    command = [sys.executable, "-c", code, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"training\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert out == b"saved\n"
    assert err.splitlines()[-1].startswith(b"t2tp_tune: trial 0 was interrupted; started again")


def test_what_was_drawn_stands_beside_the_metric():
    drawn = ({"rate": 0.00123456, "layers": 2, "heads": 4}, {"rate": 0.5, "layers": 2, "heads": 8})
    trials = [Trial(n, Path(f"t{n}"), 9, {"loss": 1.0 - n}, h) for n, h in enumerate(drawn)]
    assert table(trials, "loss", True).splitlines() == [
        "loss 0.0000 at step 9: t1  rate=0.5  heads=8",
        "loss 1.0000 at step 9: t0  rate=0.001235  heads=4",
    ]


def test_trials_of_different_hyperparameters_are_compared():
    """Of two versions of a model: one has a hyperparameter that the other lacks."""
    hparams = ({"rate": 0.1, "layers": 2}, {"layers": 2, "heads": 8})
    trials = [Trial(n, Path(f"t{n}"), 9, {"loss": float(n)}, h) for n, h in enumerate(hparams)]
    assert table(trials, "loss", True).splitlines() == [
        "loss 0.0000 at step 9: t0  rate=0.1",
        "loss 1.0000 at step 9: t1  heads=8",
    ]
