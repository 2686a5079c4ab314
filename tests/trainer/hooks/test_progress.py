import contextlib
import os
import struct

import pytest
from absl import logging

from t2tp.processes.process_spec import ProcessSpec
from t2tp.trainer.cli import console
from t2tp.trainer.hooks.hook import Training
from t2tp.trainer.hooks.progress import TrainingProgress

SCALARS = {"loss": 1.25, "step_time": 0.5, "tokens_per_second": 4096.0}


@pytest.fixture
def plain_lines():
    """Configures the log as a program does."""
    console.use_plain_lines()


def train(progress: TrainingProgress) -> None:
    with progress:
        for step in (11, 12):
            progress.after_step(Training(step, 132), {})
            progress.report(step, SCALARS)


def test_in_a_log_it_is_a_line_a_report(plain_lines, capfd):
    progress = TrainingProgress(10, 132, lambda step: f"saves at {step + 9}")
    progress.report(11, {"loss": 1.25})  # The first step: its time is mostly compilation.
    train(progress)
    assert capfd.readouterr().err.splitlines() == [
        "step 11/132  loss 1.2500",
        "step 11/132  loss 1.2500  4,096 tokens/s  500.0 ms/step  0:01:00 left",
        "step 12/132  loss 1.2500  4,096 tokens/s  500.0 ms/step  0:01:00 left",
    ]


def test_of_several_processes_the_first_speaks_and_the_others_only_warn(plain_lines, capfd):
    for process_id in range(2):
        console.use_plain_lines(ProcessSpec(process_id, 2, "localhost:8476"))
        logging.info("step 11")
        logging.warning("the disk is nearly full")
    assert capfd.readouterr().err.splitlines() == [
        "step 11",
        "warning: the disk is nearly full",
        "process 1: warning: the disk is nearly full",
    ]


def test_what_tensorflow_says_of_its_work_is_left_out(plain_lines, capfd):
    code = "logging.info('writing a fingerprint')\nlogging.warning('a file is damaged')"
    for file in ("tensorflow/python/saved_model/save.py", "tensorflow_datasets/core/logging.py"):
        path = f"/usr/lib/python3/site-packages/{file}"
        exec(compile(code, path, "exec"), {"logging": logging})
    exec(compile(code, "/home/me/tensorflow/my_problem.py", "exec"), {"logging": logging})
    said = capfd.readouterr().err.splitlines()
    assert said == ["warning: a file is damaged", "writing a fingerprint"]


def test_on_a_terminal_it_is_a_bar_and_log_lines_stand_above_it(plain_lines, monkeypatch):
    termios, fcntl = pytest.importorskip("termios"), pytest.importorskip("fcntl")
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        with TrainingProgress(10, 132, lambda step: f"saves at {step + 9}") as progress:
            logging.info("the bar stands below this")
            progress.after_step(Training(11, 132), {})
            progress.report(11, SCALARS)
            logging.info("evaluation at step 11")
            logging.warning("twice")
            logging.warning("twice")
    shown = b""
    with os.fdopen(reader, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while chunk := screen.read(4096):  # OSError: the terminal is closed.
            shown += chunk
    shown = shown.decode()
    assert "10/132 [00:00, compiling the first step]" in shown
    assert "?step/s" not in shown
    assert "11/132 [" in shown
    assert "loss 1.2500  4,096 tokens/s  saves at 20" in shown
    assert "\revaluation at step 11\r\n" in shown
    assert shown.count("warning: twice") == 1
    assert "ms/step" not in shown


def test_a_terminal_without_a_width_has_lines(plain_lines, monkeypatch):
    reader, terminal = os.openpty()  # It has 0 columns.
    with os.fdopen(reader, "rb", buffering=0) as screen, os.fdopen(terminal, "w") as stderr:
        with monkeypatch.context() as patched:
            patched.setattr("sys.stderr", stderr)
            with TrainingProgress(10, 132, lambda step: "") as progress:
                progress.report(11, SCALARS)
        stderr.flush()
        assert b"step 11/132  loss 1.2500" in screen.read(4096)
