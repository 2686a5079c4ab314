"""Every program works with a directory of an awkward name, or refuses it with one sentence."""

import os
import shutil
from pathlib import Path

import pytest

from t2tp.trainer.cli import programs, tune
from tests.huggingface.tiny_files import write_tiny_gpt2
from tests.trainer.cli.test_t2tp_tune import FAKE
from tests.trainer.command import refused

NAMES = ["a,b[1]\\ *? {100%s} ~é\nc:d;e=>f", '-dash it\'s "$HOME" #1!']


def run_on(run, data_dir):
    """Returns the command line of each program, for a run with checkpoints of steps 1 and 2."""
    given = [f"--output_dir={run}", f"--data_dir={data_dir}"]
    new = ["--problem=languagemodel_encodings", "--model=transformer_lm"]
    new += ["--hparams_set=transformer_lm_test", "--schedule=train"]
    first, second = (f"{run}/checkpoints/step-0000000{step}" for step in (1, 2))
    (run.parent / "prompts.txt").write_text("import\n")
    decoded = [f"--decode_from_file={run.parent}/prompts.txt", f"--decode_to_file={run}.txt"]
    return {
        "t2tp_eval": [*given, "--eval_steps=1", f"--checkpoint_path={first},{second}"],
        "t2tp_decoder": [*given, *decoded, "--decode_hparams=extra_length=1,temperature=1.0"],
        "t2tp_inspect_checkpoint": [os.path.join(".", run)],
        "t2tp_avg_checkpoints": [f"--checkpoints={first},{second}", f"--output_path={run}-mean"],
        "t2tp_exporter": [*given, f"--export_dir={run.parents[1] / 'plain'}"],
        "resume": [*given, *new, "--train_steps=3", f"--log_json={run}.jsonl"],
        "warm start": [f"--output_dir={run}-2", *given[1:], *new, f"--warm_start_from={run}"],
    }


def check(commands):
    """Runs a command of each program; keys that name no program run `t2tp_trainer`."""
    codes = {}
    for program, command in commands.items():
        main = getattr(programs, program.split()[0], programs.t2tp_trainer)
        codes[program] = main([program, *map(str, command)])
    assert codes == dict.fromkeys(codes, 0)


@pytest.fixture(params=NAMES)
def directory(request, tmp_path, monkeypatch):
    """Returns a directory with an awkward name; a path that begins with a dash is relative."""
    path = tmp_path / request.param
    path.mkdir()
    monkeypatch.chdir(tmp_path)
    return path.relative_to(tmp_path) if request.param[0] == "-" else path


@pytest.mark.ci_only
@pytest.mark.slow
def test_every_program_works_in_a_directory_of_any_name(tmp_path, trained, data_dir, directory):
    run = shutil.copytree(trained, directory / "run")
    data = shutil.copytree(data_dir, directory / "data")
    commands = run_on(run, data)
    commands["warm start"] += ["--train_steps=1", "--hparams=d_ff=64"]
    check(commands)


def test_data_are_made_in_a_directory_of_any_name(directory):
    text, data = directory / "a [1].txt", directory / "data"
    text.write_text("the quick fox\n" * 99)
    options = f"--problem_options=files={str(text)!r},documents=lines,vocab_size=280"
    given = ["--problem=languagemodel_textfiles", f"--data_dir={data}"]
    made = [*given, options, f"--tmp_dir={directory}/tmp"]
    check(
        {
            "t2tp_datagen": made,
            "t2tp_datagen again": [*made, "--overwrite"],
            "t2tp_datagen inspects": [*given, "--inspect"],
        }
    )


def test_models_are_converted_in_a_directory_of_any_name(directory):
    write_tiny_gpt2(directory / "gpt2")
    run, back = f"--output_dir={directory}/run", directory / "back"
    check(
        {
            "t2tp_convert": [f"--from_hf={directory}/gpt2", run],
            "t2tp_convert back": [f"--to_hf={back}", run],
            "t2tp_convert again": [f"--from_hf={back}", f"--output_dir={directory}/run-2"],
        }
    )


def test_a_search_works_in_a_directory_of_any_name(directory, monkeypatch):
    monkeypatch.setattr(tune, "PROGRAM", FAKE)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    search = ["--hparams_range=basic1", "--sampler=random", f"--output_dir={directory}"]
    trainer = ["--problem=languagemodel_python_stdlib", "--model=transformer_lm"]
    trainer += ["--hparams_set=transformer_lm_tiny", f"--data_dir={directory}"]
    for trials in (1, 2):  # The second time it resumes.
        check({"t2tp_tune": [*search, f"--trials={trials}", "--", *trainer]})
    assert (directory / "trial-0001" / "eval").is_dir()


def test_a_saved_model_that_tensorflow_could_not_load_is_refused(trained, data_dir, capsys):
    run = trained.rename(trained.parent / "v[1]")
    said = refused(capsys, "t2tp_exporter", output_dir=run, data_dir=data_dir)
    assert "--export_dir" in said
    assert not (run / "export").exists()


@pytest.mark.parametrize("program", ["t2tp_trainer", "t2tp_eval", "t2tp_inspect_checkpoint"])
def test_a_path_that_is_not_utf8_is_refused(program, capsys):
    path = "/v\udcff"  # the byte 0xff, as Python reads it
    command = [path] if "inspect" in program else [f"--output_dir={path}", "--data_dir=data"]
    line = refused(capsys, program, *command)
    assert "\\xff" in line and "UTF-8" in line
