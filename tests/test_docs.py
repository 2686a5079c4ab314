"""The outputs that pages of docs/ show are those of their code."""

import re

from tests.page_blocks import blocks


def test_the_engine_s_example_says_what_the_page_shows(capsys):
    (code,) = blocks("engine.md", "python")
    exec(compile(code, "engine.md", "exec"), {})
    said = capsys.readouterr().out
    shown = [piece for block in blocks("engine.md", "text") for piece in block.split("...\n")]
    assert len(shown) >= 3
    for piece in shown:
        assert piece.strip("\n") in said


def test_the_check_of_a_layout_has_the_rows_that_the_page_shows(capsys):
    (code,) = blocks("check_layout.md", "python")
    exec(compile(code, "check_layout.md", "exec"), {})
    number = re.compile(r"\d\.\de[+-]\d\d")  # Rounding differs from machine to machine.
    said = number.sub("...", capsys.readouterr().out)
    assert number.sub("...", blocks("check_layout.md", "text")[1]) == said
