"""The examples of docs/checkpoints.md work."""

from t2tp.checkpoint import all_steps
from tests.page_blocks import blocks

OF_A_PROGRAM, THE_FORMAT = blocks("checkpoints.md", "python")


def run(code: str) -> dict:
    names: dict = {}
    exec(compile(code, "checkpoints.md", "exec"), names)
    return names


def test_the_page_s_program_resumes_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(OF_A_PROGRAM)["first_step"] == 0
    assert run(OF_A_PROGRAM)["first_step"] == 20
    assert all_steps("run") == [10, 20]


def test_the_page_s_example_says_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, code = run(THE_FORMAT), THE_FORMAT
    for line in code.splitlines():
        expression, _, shown = line.partition("  # ")
        if expression.startswith("checkpoint."):
            assert eval(expression, names) == eval(shown)
    assert names["value"].shape == (5000, 64)
