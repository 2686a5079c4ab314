from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata

import pytest

from t2tp.trainer import trainer_flags
from t2tp.trainer.errors import UsageError
from t2tp.trainer.run_config import RunConfig

FLAGS = [trainer_flags.define()[name] for name in trainer_flags.define()]


def test_flags_are_read_and_hparams_add_up():
    flags = trainer_flags.parse(["t2tp_trainer", "--hparams=a=1", "--hparams=b=2", "--xla"])
    assert (flags.hparams, flags.xla, flags.train_steps) == (["a=1", "b=2"], True, None)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--problems=x", "Unknown command line flag 'problems'. Did you mean: problem"),
        ("--train_steps=many", "train_steps"),
        ("--decode_length=-1", "decode_length"),
        ("train", "'train' is no flag"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(argument, says):
    with pytest.raises(UsageError) as error:
        trainer_flags.parse(["t2tp_trainer", argument])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_help_names_every_flag():
    text = trainer_flags.help_text()
    for name in trainer_flags.define():
        assert name in text


PROGRAMS = ("trainer", "eval", "decoder", "exporter", "tune", "bleu", "launch", "avg_checkpoints")
PROGRAMS += ("inspect_checkpoint",)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_says_its_version_and_answers_h(program, capsys):
    main = importlib.import_module(f"t2tp.trainer.t2tp_{program}").main
    # Those that parse with argparse take the arguments without the program's name.
    before = [] if program in ("launch", "avg_checkpoints", "inspect_checkpoint") else [program]
    for asked, says in (("--version", f"t2tp {metadata.version('t2tp')}\n"), ("-h", None)):
        try:
            code = main([*before, asked])
        except SystemExit as ended:
            code = ended.code
        assert code == 0
        said = capsys.readouterr().out
        assert said == says if says else "--" in said


@pytest.mark.parametrize("program", ["trainer", "eval", "decoder", "exporter"])
def test_a_missing_flag_is_said_before_tensorflow_is_imported(program):
    code = (
        f"import sys; from t2tp.trainer.t2tp_{program} import main;"
        "code = main(['x', '--data_dir=d']); sys.exit(9 if 'tensorflow' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"t2tp_{program}: --output_dir is missing\n")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if flag.flag_type() == "float"])
def test_a_number_that_is_none_is_refused(name, value):
    with pytest.raises(UsageError, match=name):
        trainer_flags.parse(["t2tp_trainer", f"--{name}={value}"])


@pytest.mark.parametrize("name", ["output_dir", "data_dir", "tmp_dir", "t2t_usr_dir"])
def test_remote_paths_are_refused(name):
    for path in ("gs://bucket/run", "s3://bucket/run", "hdfs://host/run"):
        with pytest.raises(UsageError, match=f"--{name}={path}: only paths of this host's files"):
            trainer_flags.parse(["t2tp_trainer", f"--{name}={path}"])
    with pytest.raises(ValueError, match="output_dir=gs://b/r"):
        RunConfig("gs://b/r")
