"""The program as a user runs it, on the whole standard library."""

from tests.python_code import run_code
from tests.trainer.command import call, refused

PROBLEM = "languagemodel_python_stdlib"


def test_what_is_wrong_ends_with_a_sentence_and_touches_nothing(tmp_path, capsys):
    flags = {"problem": PROBLEM[:-1], "data_dir": tmp_path / "data"}
    says = f"unknown problem '{PROBLEM[:-1]}': did you mean {PROBLEM}"
    assert says in refused(capsys, "t2tp_datagen", **flags)
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call("t2tp_datagen", problem=PROBLEM, data_dir=tmp_path / "file") == 1
    said = capsys.readouterr().err
    assert f"cannot write data: File exists: '{tmp_path / 'file'}'" in said


def test_little_is_made_without_tensorflow_and_in_one_process(tmp_path):
    """Starting TensorFlow or other processes would take longer than to encode 2,000 lines."""
    (tmp_path / "a.tsv").write_text("".join(f"a line {n}\tLinie {n}\n" for n in range(2000)))
    code = (
        "import sys\nfrom concurrent import futures\n"
        "futures.ProcessPoolExecutor = None\n"
        "from t2tp.trainer.cli.programs import t2tp_datagen\n"
        "code = t2tp_datagen()\n"
        "assert 'tensorflow' not in sys.modules\n"
        "sys.exit(code)"
    )
    options = f"--problem_options=files={tmp_path}/a.tsv,vocab_size=300"
    arguments = ["--problem=translate_tsv", f"--data_dir={tmp_path / 'data'}", options]
    # The first line has no prefix, and is not TensorFlow's.
    first_line = run_code(code, *arguments).stderr.splitlines()[0]
    assert first_line.startswith("making the data of translate_tsv in ")
