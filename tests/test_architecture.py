"""The packages match docs/architecture.md. (`make lint` checks which imports are allowed.)"""

import re
from pathlib import Path

import pytest

from tools import package_map

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
MAX_FILES = 25
PACKAGES = [
    init.parent
    for top in ("t2tp", "hparams", "problems", "trainer")
    for init in (REPOSITORY / top).rglob("__init__.py")
]
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_package_has_too_many_files(package):
    assert len({*package.glob("*.py")} - {package / "__init__.py"}) <= MAX_FILES


def test_the_diagram_is_drawn_from_the_contract():
    drawn = package_map.diagram(package_map.layers())
    assert package_map.DIAGRAM.read_text("utf-8") == drawn, "run `python tools/package_map.py`"


def test_every_file_that_the_page_names_exists():
    named = set(re.findall(r"`((?:t2tp|trainer|problems|hparams|tools)/[\w/.]*)`", PAGE))
    assert len(named) > 20
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_a_file_defines_what_the_page_says(file, name):
    source = (REPOSITORY / file).read_text("utf-8")
    assert re.search(rf"^ *(?:def|class) {name}\b|^{name} = ", source, re.MULTILINE)
