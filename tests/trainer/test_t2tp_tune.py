"""`t2tp_tune`: trials one after another, each a real `t2tp_trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest

from t2tp.hparam import HParams
from t2tp.trainer import t2tp_tune
from t2tp.trainer.errors import UsageError
from t2tp.trainer.t2tp_tune import Trial, main, table
from tests.trainer.conftest import PROBLEM


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
        (["--hparams_range=basic1", "--output_dir=o"], "they stand after --"),
        (["--hparams_range=basic1", "--output_dir=o", "--", "--trial=3"], "--trial=3 stands after"),
        (["--trails=3"], "Did you mean: trials"),
    ],
)
def test_wrong_flags_are_one_sentence(capsys, arguments, says):
    assert main(["t2tp_tune", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


@pytest.mark.slow
def test_two_trials_from_beginning_to_end(tmp_path, data_dir, capfd, monkeypatch):
    monkeypatch.setattr(t2tp_tune, "PROGRAM", "tests.trainer.tiny_problem")
    search = tmp_path / "search"
    command = ["t2tp_tune", "--hparams_range=basic1", "--trials=2", f"--output_dir={search}", "--"]
    command += [f"--problem={PROBLEM}", "--model=transformer_lm", f"--data_dir={data_dir}"]
    command += ["--hparams_set=transformer_lm_test", "--train_steps=2", "--eval_steps=1"]
    assert main(command) == 0
    lines = capfd.readouterr().out.splitlines()
    names = sorted(line.rpartition("/")[2].split("  ")[0] for line in lines)
    assert names == ["trial-0000", "trial-0001"]
    assert all("learning_rate_constant=" in line for line in lines)
    assert float(lines[0].split()[1]) <= float(lines[1].split()[1])
    rates = {
        HParams.load(search / f"trial-000{n}/hparams.json").learning_rate_constant for n in (0, 1)
    }
    assert len(rates) == 2
    assert main([*command, "--model=nothing"]) == 2  # As the trainer says.


def test_what_was_drawn_stands_beside_the_metric():
    drawn = ({"rate": 0.00123456, "layers": 2, "heads": 4}, {"rate": 0.5, "layers": 2, "heads": 8})
    trials = [Trial(n, Path(f"t{n}"), 9, {"loss": 1.0 - n}, h) for n, h in enumerate(drawn)]
    assert table(trials, "loss", True).splitlines() == [
        "loss 0.0000 at step 9: t1  rate=0.5  heads=8",
        "loss 1.0000 at step 9: t0  rate=0.001235  heads=4",
    ]
