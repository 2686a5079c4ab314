"""Code blocks of the pages in docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    """Returns the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)


def check_shown(page: str, source: str, left_out: tuple[str, ...] = ()) -> None:
    """Checks that a source has all lines of a page, except lines that begin with `left_out`."""
    for block in blocks(page, "python"):
        for line in block.splitlines():
            assert line.strip().startswith(left_out) or line in source
