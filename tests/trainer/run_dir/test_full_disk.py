"""If the disk of a run is full, it ends with one sentence, and complete files stay complete."""

import pytest

from t2tp.checkpoint import all_steps
from t2tp.hparam import HParams
from t2tp.trainer.errors import UsageError
from t2tp.trainer.hooks.heartbeat import Heartbeat
from t2tp.trainer.hooks.json_log import JsonLog
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.evaluation_record import EvaluationRecord
from tests.files import files_of_at_most
from tests.trainer.command import call


def write_events(directory):
    writer = SummaryWriter(str(directory))
    for step in range(1000):  # TensorFlow's files have a buffer.
        writer.write(step, {"loss": 1.0})


def write_json(directory):
    log = JsonLog(str(directory / "log.jsonl"))
    for step in range(1000):
        log.write("report", step)


WRITERS = {
    "events.out.tfevents": write_events,
    "log.jsonl": write_json,
    "heartbeat.json": lambda directory: Heartbeat(str(directory)).beat(1, "training"),
    "eval.jsonl": lambda directory: EvaluationRecord(directory).add(1, {"loss": 1.0}),
    "run.yaml": lambda directory: run_files.write(str(directory), HParams(d_model=8), {}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_named_in_a_sentence(tmp_path, name):
    with files_of_at_most(30), pytest.raises(UsageError, match="File too large") as error:
        WRITERS[name](tmp_path)
    assert f"{tmp_path}/{name}" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_an_export_that_does_not_fit_is_not_blamed_on_the_hparams(trained, data_dir, capfd):
    with files_of_at_most(20_000):
        assert call("t2tp_exporter", output_dir=trained, data_dir=data_dir) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert "File too large" in said and f"{trained}/export" in said and "hparams" not in said
    assert not [path for path in (trained / "export").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_a_training_ends_with_a_sentence_and_goes_on_when_there_is_room(trainer, tmp_path, capfd):
    assert trainer(schedule="train", train_steps=2) == 0
    with files_of_at_most(20_000):
        assert trainer(schedule="train", train_steps=200) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(
        f"t2tp_trainer: what TensorBoard shows cannot be written into {tmp_path / 'run'}: "
    )
    assert all_steps(tmp_path / "run/checkpoints") == [2]
    assert trainer(schedule="train", train_steps=3) == 0
    assert "resuming from the checkpoint of step 2" in capfd.readouterr().err
