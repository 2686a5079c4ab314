"""The program as a user runs it, on the whole standard library."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t2tp.problems.python_stdlib import LanguagemodelPythonStdlib
from t2tp.problems.python_stdlib_builder import read_sources
from t2tp.trainer.cli.programs import t2tp_datagen as main

PROBLEM = "languagemodel_python_stdlib"
COMMAND = [sys.executable, "-m", "t2tp.trainer.cli", "t2tp_datagen"]
# How the lines on stderr begin: none is TensorFlow's or TFDS's.
SAID = ("making ", "read ", "encoding ", "warning: skipping ", f"warning: {PROBLEM}: ", "resuming ")


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)


def test_what_is_wrong_ends_with_a_sentence_and_touches_nothing(tmp_path, capsys):
    data = f"--data_dir={tmp_path / 'data'}"
    assert main(["t2tp_datagen", data, f"--problem={PROBLEM[:-1]}"]) == 2
    sentence = f"t2tp_datagen: unknown problem '{PROBLEM[:-1]}': did you mean {PROBLEM}"
    said = capsys.readouterr().err
    assert said.startswith(sentence) and len(said.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_directory_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["t2tp_datagen", f"--problem={PROBLEM}", f"--data_dir={tmp_path / 'file'}"]) == 1
    said = capsys.readouterr().err
    assert f"cannot write data: File exists: '{tmp_path / 'file'}'" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "no files are given: use the option files"),
        ("files=nowhere/*.txt", "files=nowhere/*.txt matches no file (in "),
        (
            f"files={__file__},documents=words",
            "options of languagemodel_textfiles: documents=words: it is one of files, lines",
        ),
        ("files=a,test_files=b", "test_files without validation_files: give validation_files too"),
    ],
)
def test_wrong_options_end_with_a_sentence_and_touch_nothing(tmp_path, capsys, options, sentence):
    data = tmp_path / "data"
    problem = f"--problem_options={options}"
    arguments = ["--problem=languagemodel_textfiles", f"--data_dir={data}", problem]
    assert main(["t2tp_datagen", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"t2tp_datagen: {sentence}")
    assert not data.exists()


def test_an_interruption_has_the_exit_code_of_its_signal(tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("t2tp.trainer.cli.datagen._carry_out", interrupt)
    assert main(["t2tp_datagen", f"--problem={PROBLEM}", f"--data_dir={tmp_path}"]) == 130
    assert capsys.readouterr().err.startswith("t2tp_datagen: interrupted; started again")


def test_little_is_made_without_tensorflow_and_in_one_process(tmp_path):
    """Which is what takes long: 2,000 lines take the time of the program's start."""
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
    command = [sys.executable, "-c", code, *arguments]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    # No prefixes, and nothing of TensorFlow's.
    assert made.stderr.splitlines()[0].startswith("making the data of translate_tsv in ")


def make(data_dir: Path) -> Path:
    made = run(f"--problem={PROBLEM}", f"--data_dir={data_dir}")
    assert made.returncode == 0, made.stderr
    assert f"{PROBLEM} is ready in {data_dir / PROBLEM}\ntrain: " in made.stdout
    assert [line for line in made.stderr.splitlines() if not line.startswith(SAID)] == []
    return data_dir


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("data"))


@pytest.mark.ci_only  # tests/problems/test_python_stdlib.py has a few files of it.
@pytest.mark.slow
def test_the_files_of_the_standard_library_come_back(data_dir):
    """A third of them: all take ten seconds."""
    problem = LanguagemodelPythonStdlib()
    vocabulary = problem.vocabulary(data_dir)
    texts = read_sources(problem.source_dir()).texts
    assert len(texts) == sum(s.examples for s in problem.check_prepared(data_dir).splits.values())
    for path, text in itertools.islice(texts.items(), 0, None, 3):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text, path
        assert vocabulary.byte_lengths[ids].sum() == len(text.encode()), path


@pytest.mark.ci_only
@pytest.mark.slow
def test_a_second_run_finds_the_data_complete(data_dir):
    def times():
        files = (path for path in (data_dir / PROBLEM).rglob("*") if path.is_file())
        return {path: path.stat().st_mtime_ns for path in files}

    before = times()
    assert before
    make(data_dir)
    assert times() == before


@pytest.mark.ci_only  # tests/problems/prepare/test_killed.py kills it while it makes less.
@pytest.mark.slow
def test_killed_and_started_again_gives_the_same_files(data_dir, tmp_path):
    problem = LanguagemodelPythonStdlib()
    maker = subprocess.Popen(
        [*COMMAND, f"--problem={PROBLEM}", f"--data_dir={tmp_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(random.uniform(2, 10))
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    with pytest.raises(FileNotFoundError):
        problem.check_prepared(tmp_path)
    make(tmp_path)
    undisturbed, restarted = (
        {p.name: p.read_bytes() for p in problem.directory(directory).iterdir() if p.is_file()}
        for directory in (data_dir, tmp_path)
    )
    for name in undisturbed.keys() - {"manifest.json"}:
        assert restarted[name] == undisturbed[name], name
    assert restarted.keys() == undisturbed.keys()
