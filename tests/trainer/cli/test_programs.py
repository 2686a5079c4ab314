"""What all programs have in common: help, version, mistakes on the command line, exit codes."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import tensorflow as tf
from absl import flags

import t2tp
from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli import run_program as runner
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import ProgramSpec, run_program
from t2tp.trainer.errors import FailedError, ProcessLostError, UsageError
from t2tp.trainer.processes.interrupt import TrainingInterrupted
from tests.python_code import run_code

every_program = pytest.mark.parametrize("spec", PROGRAMS.values(), ids=PROGRAMS)

PLAN = ["--model=mlp", "--hparams_set=mlp_tiny", "--vocab_size=10", "--cluster=a100"]

WRONG_VALUES = {"int": "many", "float": "much", "bool": "maybe", "string enum": "othre"}


def flags_of(spec: ProgramSpec) -> dict[str, flags.Flag]:
    values = flag_groups.define(spec.groups)
    return {name: values[name] for name in values if values[name].name == name}


def valid(spec: ProgramSpec, *without: str) -> list[str]:
    """Returns the shortest valid command line, minus the program's name and the given flags."""
    arguments = ["x" for each in spec.positional if not each.is_optional]
    values = {
        name: "2" if flags_of(spec)[name].flag_type() == "int" else "x"
        for name in spec.required
        if name not in without
    }
    return [f"--{name}={value}" for name, value in values.items()] + arguments


@pytest.fixture
def call(monkeypatch, capfd):
    """Returns a function that runs a program with another body.

    It returns the exit code, stdout, and the lines on stderr.
    """

    def run(spec, arguments, body=None):
        def import_body(name):
            assert body is not None, f"{name} was imported"
            return body

        monkeypatch.setattr(runner, "_function", import_body)
        code = run_program(spec, [spec.name, *arguments])
        said = capfd.readouterr()
        return code, said.out, said.err.splitlines()

    return run


@every_program
def test_help_has_a_line_for_each_flag_and_argument(spec, call):
    code, text, errors = call(spec, ["--help"])
    assert (code, errors) == (0, [])
    assert all(call(spec, [spelling])[:2] == (0, text) for spelling in ("-h", "--helpfull"))
    for name in flags_of(spec):
        found = re.findall(rf"^  (?:-., )?--(?:\[no\])?{name}  \S", text, re.MULTILINE)
        assert len(found) == 1, name
    for argument in spec.positional:
        assert f"\n  {argument.name}  {argument.help}" in text
    assert max(map(len, text.splitlines())) <= 100
    assert spec.name in text


@every_program
def test_the_version_is_that_of_the_package(spec, call):
    assert call(spec, ["--version"]) == (0, f"t2tp {metadata.version('t2tp')}\n", [])


@every_program
def test_an_unknown_flag_is_answered_with_the_nearest_one(spec, call):
    for name in list(flags_of(spec))[-4:]:
        code, _, (sentence,) = call(spec, [f"--{name}x=1"])
        assert code == 2
        near = rf"{spec.name}: unknown flag '{name}x': did you mean .*--{name}\b.*\?"
        assert re.fullmatch(near, sentence), sentence
    _, _, (sentence,) = call(spec, ["--qqqqqqqq"])
    assert sentence == f"{spec.name}: unknown flag 'qqqqqqqq': --help lists the flags"


@every_program
def test_a_value_that_a_flag_cannot_have_is_one_sentence(spec, call):
    for name, flag in flags_of(spec).items():
        wrong = [WRONG_VALUES[flag.flag_type()]] if flag.flag_type() in WRONG_VALUES else []
        wrong += ["nan", "inf", "-inf"] if flag.flag_type() == "float" else []
        wrong += ["hdfs://host/x"] if name.endswith(("_dir", "_path")) else []
        for value in wrong:
            code, _, (sentence,) = call(spec, [f"--{name}={value}"])
            assert code == 2
            assert sentence.startswith(f"{spec.name}: --{name}={value}: ")
            assert len(sentence) > len(f"{spec.name}: --{name}={value}: ")


NUMBERS = ["0", "-1", str(10**23), str(2**63), "nan", "inf", "-inf"]


@every_program
def test_any_number_is_within_the_flags_range_or_one_sentence(spec, call):
    for group in spec.groups:
        for name, row in group.rows.items():
            if row.get("type") not in ("int", "float"):
                continue

            def check(flags, *_, name=name, row=row):
                assert row["min"] <= flags[name].value <= row.get("max", 1e12), name

            for value in NUMBERS:
                code, _, said = call(spec, [f"--{name}={value}", *valid(spec, name)], check)
                assert (code, len(said)) in ((0, 0), (2, 1)), (name, value, said)


@every_program
def test_a_path_may_begin_with_the_home_directory(spec, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    rows = {name: row for group in spec.groups for name, row in group.rows.items()}
    for name in [name for name, row in rows.items() if row.get("type") in ("path", "address")]:
        if name == "config" or "needs" in rows[name]:
            continue
        given, _ = flag_groups.parse(spec.groups, [spec.name, f"--{name}=~/x"], spec.positional)
        assert given[name].value == "/home/me/x"


@every_program
def test_a_full_disk_is_one_sentence(spec, call):
    def body(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    stdout = os.dup(1)
    try:
        code, _, errors = call(spec, valid(spec), body)
    finally:
        os.dup2(stdout, 1)
    (said,) = errors
    assert code == 1
    assert said.startswith(f"{spec.name}: /") and said.endswith(": No space left on device")


def test_an_integer_may_be_written_as_1e5(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("flags: {train_steps: 1e5}")
    for words in ("--train_steps=1e5", f"--config={config}"):
        given, _ = flag_groups.parse(PROGRAMS["t2tp_trainer"].groups, ["t2tp_trainer", words])
        assert given.train_steps == 100_000


def without_effect(spec: ProgramSpec) -> Iterator[tuple[str, list[str]]]:
    """Yields a sentence, and the command line that causes it, for each flag with conditions."""
    rows = {name: row for group in spec.groups for name, row in group.rows.items()}
    given = {
        name: f"--{name}={row.get('choices', ['1'])[0]}"
        if row.get("type") != "bool"
        else f"--{name}"
        for name, row in rows.items()
    }
    for name, row in rows.items():
        for other in row.get("excludes", ()):
            yield f"either --{name} or --{other}", [given[name], given[other]]
        if "needs" not in row:
            continue
        _, equals, possible = row["needs"][0].partition("schedule=")
        idle = set(rows["schedule"]["choices"]) if equals else {""}
        idle -= {*possible.split("|"), *(rows["schedule"]["aliases"] if equals else ())}
        for schedule in idle:
            choice = [f"--schedule={schedule}"] if schedule else []
            yield f"--{name} has no effect here", [given[name], *choice]


@every_program
def test_a_flag_without_effect_is_refused(spec, call):
    for says, words in without_effect(spec):
        code, _, (sentence,) = call(spec, words)
        assert code == 2 and says in sentence, sentence


def test_an_alias_is_the_flags_that_it_stands_for():
    groups = PROGRAMS["t2tp_trainer"].groups
    for alias in ("--schedule=test", "--schedule=continuous_train_and_eval"):
        values, _ = flag_groups.parse(groups, ["t2tp_trainer", alias])
        assert values.schedule == "train_and_evaluate"


CASES = [
    (["t2tp_trainer", "--lr=5"], "--hparams=learning_rate_constant=5"),
    (["t2tp_trainer", "--epochs=5"], "--train_steps"),
    (["t2tp_trainer", "--bf16=5"], "--precision"),
    (["t2tp_trainer", "--seed=5"], "--random_seed"),
    (["t2tp_trainer", "--batch_size=8"], "write --hparams=batch_size=8"),
    (["t2tp_trainer", "--learning_rate=0.1"], "--hparams=learning_rate_constant=0.1"),
    (["t2tp_tune", "--train_steps=8"], "write --train_steps after --"),
    (["t2tp_tune", "--batch_size=8"], "write --hparams=batch_size=8 after --"),
]


@pytest.mark.parametrize(("words", "says"), CASES)
def test_an_unknown_flag_is_answered_with_where_it_belongs(call, words, says):
    code, _, (sentence,) = call(PROGRAMS[words[0]], words[1:])
    assert code == 2 and says in sentence, sentence


@every_program
def test_what_is_missing_is_named_before_the_body_is_imported(spec, call):
    for missing in spec.required:
        rest = [each for each in valid(spec) if not each.startswith(f"--{missing}=")]
        advice = "" if rest else f"; {spec.name} --help lists the flags"
        assert call(spec, rest) == (2, "", [f"{spec.name}: --{missing} is missing{advice}"])
    if valid(spec)[len(spec.required) :]:
        code, _, (sentence,) = call(spec, valid(spec)[: len(spec.required)])
        assert code == 2
        assert sentence.startswith(f"{spec.name}: {spec.positional[0].name} is missing")


@every_program
def test_an_argument_too_many_is_named(spec, call):
    if any(each.takes_rest for each in spec.positional):
        words = ["a", "--unknown", "-h"]
        calls = []
        given = [*valid(spec)[: len(spec.required)], *words]
        assert call(spec, given, lambda flags, *rest: calls.append(rest))[0] == 0
        assert calls == [tuple(words)]
    else:
        stray = [f"x{number}" for number in range(len(spec.positional) + 1)]
        code, _, (sentence,) = call(spec, stray)
        assert code == 2
        assert sentence.startswith(f"{spec.name}: '{stray[-1]}' is neither a flag")


NO_MEMORY = tf.errors.ResourceExhaustedError
IN_GRAPH = "Graph execution error:\n\nDetected at node x\n\nOOM: 9 GB\n\t [[{{node x}}]]"
ENDS = {
    "done": (None, 0, ""),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted"),
    "Ctrl-C while training": (TrainingInterrupted("saved", 2), 130, "saved"),
    "SIGTERM while training": (TrainingInterrupted("saved", 15), 143, "saved"),
    "wrong usage": (UsageError("no such file"), 2, "no such file"),
    "failure": (FailedError("no network"), 1, "no network"),
    "no memory": (MemoryError("9 GB"), 1, "out of memory: 9 GB"),
    "no memory in a graph": (NO_MEMORY(None, None, IN_GRAPH), 1, "out of memory: OOM: 9 GB"),
    "lost process": (ProcessLostError("process 1 is gone"), 3, "process 1 is gone"),
}


@every_program
@pytest.mark.parametrize("end", ENDS)
def test_each_end_has_its_exit_code_and_sentence(spec, end, call):
    error, code, sentence = ENDS[end]

    def body(*_):
        if error is not None:
            raise error

    if end == "wrong usage" and not valid(spec):
        sentence += f"; {spec.name} --help lists the flags"
    said = [f"{spec.name}: {sentence}"] if sentence else []
    assert call(spec, valid(spec), body) == (code, "", said)


def test_of_several_processes_each_says_who_it_is_and_one_that_it_was_interrupted(call):
    spec = PROGRAMS["t2tp_eval"]

    def fail(*_):
        raise UsageError("no such file")

    def interrupt(*_):
        raise KeyboardInterrupt

    for number in (0, 1):
        where = ["--num_processes=2", f"--process_id={number}", "--coordinator=host:1"]
        own = [*valid(spec), *where]
        assert call(spec, own, fail)[2] == [f"t2tp_eval: process {number} of 2: no such file"]
        said = [] if number else ["t2tp_eval: interrupted"]
        assert call(spec, own, interrupt) == (130, "", said)


def test_the_installed_programs_are_these():
    settings = (Path(t2tp.__path__[0]).parent / "pyproject.toml").read_text()
    scripts = re.findall(r'^(t2tp_\w+) = "(.*)"$', settings, re.MULTILINE)
    assert scripts == [(name, f"t2tp.trainer.cli.programs:{name}") for name in PROGRAMS]


def test_the_page_lists_the_programs():
    page = (Path(t2tp.__path__[0]).parent / "docs" / "programs.md").read_text()
    assert set(re.findall(r"^\| `(t2tp_\w+)` \|", page, re.MULTILINE)) == set(PROGRAMS)


# Runs each program with --help and with a mistake, in one process without TensorFlow.
_LIGHT = """
import contextlib, io, sys, time
from t2tp.trainer.cli.programs import PROGRAMS
from t2tp.trainer.cli.run_program import run_program
for name, spec in PROGRAMS.items():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        codes = [run_program(spec, [name, word]) for word in ("--help", "--problm=x")]
    assert codes == [0, 2], (name, codes)
assert "tensorflow" not in sys.modules and "numpy" not in sys.modules
print(time.process_time())
"""


def test_help_and_mistakes_need_no_tensorflow_and_no_second():
    assert float(run_code(_LIGHT).stdout) < 1.5


# Imports the modules of programs that do not need TensorFlow; fails at the first that imports it.
_BODIES = """
import importlib, sys
from t2tp.trainer.cli.programs import PROGRAMS
for name, spec in PROGRAMS.items():
    if not spec.imports_tensorflow:
        importlib.import_module(spec.body.partition(":")[0])
        assert "tensorflow" not in sys.modules, name
"""


def test_programs_whose_import_is_not_quiet_import_no_tensorflow():
    run_code(_BODIES)


TYPED = [["t2tp_plan", "--help"], ["t2tp_plan", *PLAN]]


@pytest.mark.slow
@pytest.mark.parametrize("words", TYPED, ids=["help", "plan"])
def test_a_closed_pipe_ends_a_program_without_a_word(words):
    command = [sys.executable, "-m", "t2tp.trainer.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE
    assert b"Traceback" not in said and b"Broken pipe" not in said


USER_CODE = {
    "raises": ("import os\n\ndef f():\n    return no_name\n\nf()\n", [6, 4], "NameError: "),
    "is no Python": ("x = 1\ndef f(:\n", [2], "SyntaxError: "),
    "lacks a module": ("import nosuch\n", [1], "ModuleNotFoundError: "),
}


@pytest.mark.parametrize("kind", USER_CODE)
def test_an_error_of_the_user_s_module_shows_the_user_s_lines(call, tmp_path, kind):
    code, lines, last = USER_CODE[kind]
    directory = tmp_path / f"user_{kind.replace(' ', '_')}"
    directory.mkdir()
    (directory / "one.py").write_text(code)
    arguments = ["--problem=x", "--data_dir=d", f"--t2t_usr_dir={directory}"]
    exit_code, _, said = call(PROGRAMS["t2tp_datagen"], arguments, lambda flags: None)
    assert exit_code == 2 and said[0].startswith(f"t2tp_datagen: --t2t_usr_dir={directory}")
    places = [line for line in said if line.startswith("  File ")]
    for line, place in zip(lines, places, strict=True):
        assert f'"{directory}/one.py", line {line}' in place
    assert said[-1].startswith(last)


def test_a_program_starts_by_its_name(capfd):
    command = [sys.executable, "-m", "t2tp"]
    assert subprocess.run([*command, "t2tp_bleu", "--version"]).returncode == 0
    assert capfd.readouterr().out.startswith("t2tp ")
    assert subprocess.run(command).returncode == 0
    assert re.findall(r"^t2tp_\w+", capfd.readouterr().out, re.M) == [*PROGRAMS]
    assert subprocess.run([*command, "t2tp_blue"]).returncode == 2
    assert "unknown program 't2tp_blue': did you mean t2tp_bleu, " in capfd.readouterr().err


def test_flags_come_from_a_file_and_hparams_add_up(tmp_path):
    (tmp_path / "flags.txt").write_text("--hparams=b=2\n# a remark\n--xla\n")
    spec = PROGRAMS["t2tp_trainer"]
    command_line = [spec.name, "--hparams=a=1", f"--flagfile={tmp_path / 'flags.txt'}"]
    values, _ = flag_groups.parse(spec.groups, command_line)
    assert (values.hparams, values.xla, values.train_steps) == (["a=1", "b=2"], True, None)
    # A run stores its flags, so their names are part of its format.
    assert not {"h", "helpfull"} & set(values)
