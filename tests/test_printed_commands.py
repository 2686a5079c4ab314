"""Commands that messages print work when a user pastes them into a shell."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from t2tp import problems
from t2tp.trainer.cli.programs import t2tp_trainer
from t2tp.trainer.run_dir import run_files


def paste(said, directory):
    """Runs the last command of a message in a shell and checks that it succeeds."""
    command = re.findall(r"^  (t2tp_\w+ .*(?:\n.*)*)", said.rstrip(), re.MULTILINE)[-1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env={**os.environ, "PATH": path, "T2TP_TEST_HOME": "/wrong"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stderr}"
    return ended.stderr


@pytest.mark.parametrize("name", ["plain", 'it\'s $T2TP_TEST_HOME, `x` & "a" [1];*'])
def test_commands_that_make_data(tmp_path, capsys, name):
    directory = tmp_path / name
    directory.mkdir()
    text = directory / "a.jsonl"
    text.write_text("".join(json.dumps({"text": f"the quick fox {n}"}) + "\n" for n in range(99)))
    options = f"files={str(text)!r},vocab_size=300,documents=lines"
    data = directory / "data"
    command = ["t2tp_trainer", "--problem=languagemodel_textfiles", "--model=transformer_lm"]
    command += ["--hparams_set=transformer_lm_tiny", f"--problem_options={options}"]
    command += [f"--data_dir={data}", f"--output_dir={directory}/run"]
    assert t2tp_trainer(command) == 2
    warned = paste(capsys.readouterr().err, tmp_path)  # The data do not exist.
    problem = problems.find("languagemodel_textfiles", options)
    problem.check_prepared(data)
    (data / problem.name / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="damaged") as error:
        problem.check_prepared(data)
    paste(str(error.value), tmp_path)
    problem.check_prepared(data)
    assert "their keys, quotes and escapes will be learned" in warned
    paste(re.search(r"  t2tp_datagen --problem=languagemodel_records.*", warned)[0], tmp_path)
    problems.find("languagemodel_records").check_prepared(data)


@pytest.mark.parametrize("flag", ["--warm_start_from", "--checkpoint_path"])
def test_flags_that_name_a_run_without_settings(tmp_path, flag):
    run = tmp_path / "it's a run"
    (run / "checkpoints/step-00000003").mkdir(parents=True)
    with pytest.raises(run_files.RunFileError) as error:
        run_files.check_known(str(run), None)
    words = shlex.split(re.search(rf"{flag}=.* to ", str(error.value))[0].split(" to ")[0])
    assert words == [f"{flag}={run}"]
