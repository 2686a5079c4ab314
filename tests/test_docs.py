"""The code of the README and of pages works, and gives what they show."""

import os
import re
from pathlib import Path

from t2tp.checkpoint import all_steps
from tests.page_blocks import blocks
from tests.patience import PATIENCE
from tests.python_code import run_code

README = Path(__file__).parent.parent / "README.md"


def run(page: str, number: int = 0) -> dict:
    """Runs a block of Python of a page; returns its names."""
    names: dict = {}
    exec(compile(blocks(page, "python")[number], page, "exec"), names)
    return names


def test_the_program_in_ten_lines_runs():
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = run_code(snippet, env=environment, timeout=PATIENCE)
    assert done.stderr == ""
    losses = [float(line) for line in done.stdout.splitlines()[:3]]
    assert losses[0] > losses[1] > losses[2] > 0
    assert "processor 3: /device:CPU:3" in done.stdout
    assert "allreduce" in done.stdout


def test_every_page_that_the_readme_names_exists():
    named = re.findall(r"\]\((docs/[\w./]+)\)", README.read_text())
    missing = [page for page in named if not (README.parent / page).exists()]
    assert named and not missing


def test_importing_t2tp_prints_nothing_and_lists_all_names_without_tensorflow():
    code = "import t2tp, sys; t2tp.HParams(a=1); print(*dir(t2tp))"
    done = run_code(f"{code}; assert 'tensorflow' not in sys.modules")
    (names,) = done.stdout.splitlines()
    assert {"Program", "mtf", "plan"} <= set(names.split())
    assert done.stderr == ""


def test_the_engine_s_example_says_what_the_page_shows(capsys):
    run("engine.md")
    said = capsys.readouterr().out
    shown = [piece for block in blocks("engine.md", "text") for piece in block.split("...\n")]
    assert len(shown) >= 3
    for piece in shown:
        assert piece.strip("\n") in said


def test_the_check_of_a_layout_has_the_rows_that_the_page_shows(capsys):
    run("check_layout.md")
    number = re.compile(r"\d\.\de[+-]\d\d")  # Rounding differs from machine to machine.
    said = number.sub("...", capsys.readouterr().out)
    assert number.sub("...", blocks("check_layout.md", "text")[1]) == said


def test_the_example_of_a_layer_gives_what_the_page_shows(capsys):
    run("models.md")
    assert blocks("models.md", "text") == [capsys.readouterr().out]


def test_the_page_s_program_resumes_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("checkpoints.md")["first_step"] == 0
    assert run("checkpoints.md")["first_step"] == 20
    assert all_steps("run") == [10, 20]


def test_the_format_of_a_checkpoint_is_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("checkpoints.md", 1)
    for line in blocks("checkpoints.md", "python")[1].splitlines():
        expression, _, shown = line.partition("  # ")
        if expression.startswith("checkpoint."):
            assert eval(expression, names) == eval(shown)
    assert names["value"].shape == (5000, 64)
