"""docs/learning.md contains the tables of the stored results."""

import json
from pathlib import Path

import pytest
from learning import choices, widths

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"


@pytest.mark.parametrize("program", [choices, widths])
def test_the_page_has_the_table_of_the_stored_results(program):
    stored = json.loads(program.STORED.read_text("utf-8"))
    assert program.table(stored) in PAGE.read_text("utf-8")
