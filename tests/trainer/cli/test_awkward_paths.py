"""Every program with directories of awkward names: it works, or refuses with one sentence."""

from __future__ import annotations

import shutil

import pytest

from t2tp.trainer.cli import programs

NAMES = ["v[1]\\ *?", "a,b {100%s} ~é", "new\nline", "c:d;e=>f"]


def run_on(run, data_dir):
    """Program -> its command line for a run with checkpoints of steps 1 and 2."""
    given = [f"--output_dir={run}", f"--data_dir={data_dir}"]
    new = ["--problem=languagemodel_encodings", "--model=transformer_lm"]
    new += ["--hparams_set=transformer_lm_test", "--schedule=train"]
    first, second = (f"{run}/checkpoints/step-0000000{step}" for step in (1, 2))
    (run.parent / "prompts.txt").write_text("import\n")
    decoded = [f"--decode_from_file={run.parent}/prompts.txt", f"--decode_to_file={run}.txt"]
    return {
        "t2tp_eval": [*given, "--eval_steps=1", f"--checkpoint_path={first},{second}"],
        "t2tp_decoder": [*given, *decoded, "--decode_hparams=extra_length=1,temperature=1.0"],
        "t2tp_inspect_checkpoint": [str(run)],
        "t2tp_avg_checkpoints": [f"--checkpoints={first},{second}", f"--output_path={run}-mean"],
        "t2tp_exporter": [*given, f"--export_dir={run.parents[1] / 'plain'}"],
        "resume": [*given, *new, "--train_steps=3", f"--log_json={run}.jsonl"],
        "warm start": [f"--output_dir={run}-2", *given[1:], *new, f"--warm_start_from={run}"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_program_works_in_a_directory_of_any_name(tmp_path, trained, data_dir, name):
    directory = tmp_path / name
    run = shutil.copytree(trained, directory / "run")
    data = shutil.copytree(data_dir, directory / "data")
    codes = {}
    for program, command in run_on(run, data).items():
        if program == "warm start":
            command = [*command, "--train_steps=1", "--hparams=d_ff=64"]
        main = getattr(programs, program, programs.t2tp_trainer)
        codes[program] = main([program, *command])
    assert codes == dict.fromkeys(codes, 0)


def test_a_saved_model_that_tensorflow_could_not_load_is_refused(trained, data_dir, capsys):
    run = trained.rename(trained.parent / "v[1]")
    command = ["t2tp_exporter", f"--output_dir={run}", f"--data_dir={data_dir}"]
    assert programs.t2tp_exporter(command) == 2
    assert "--export_dir" in capsys.readouterr().err
    assert not (run / "export").exists()


@pytest.mark.parametrize("program", ["t2tp_trainer", "t2tp_eval", "t2tp_inspect_checkpoint"])
def test_a_path_that_is_not_utf8_is_refused(program, capsys):
    path = "/v\udcff"  # the byte 0xff, as Python reads it
    command = [path] if "inspect" in program else [f"--output_dir={path}", "--data_dir=data"]
    assert getattr(programs, program)([program, *command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "\\xff" in line and "UTF-8" in line
