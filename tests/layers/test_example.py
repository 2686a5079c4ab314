"""The page on models shows the output of its example."""

from tests.page_blocks import blocks


def test_the_example_of_the_page_gives_what_it_shows(capsys):
    (code,), (shown,) = blocks("models.md", "python"), blocks("models.md", "text")
    exec(compile(code, "models.md", "exec"), {})
    assert shown in capsys.readouterr().out
