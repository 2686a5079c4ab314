"""docs/learning.md contains the tables of the stored results."""

import json
from pathlib import Path

import pytest
from learning import choices, distillation, widths

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"


@pytest.mark.parametrize("program", [choices, widths, distillation])
def test_the_page_has_the_table_of_the_stored_results(program):
    stored = json.loads(program.STORED.read_text("utf-8"))
    assert program.table(stored) in PAGE.read_text("utf-8")


def test_a_teacher_makes_the_student_better():
    alone, taught = json.loads(distillation.STORED.read_text("utf-8")).values()
    for seed, figures in alone.items():
        assert taught[seed]["bits_per_byte"] < figures["bits_per_byte"]
        assert taught[seed]["parameters"] == figures["parameters"] <= 865_472 / 4
