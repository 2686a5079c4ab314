"""The parts of a report, and the report as text and as a self-contained HTML page."""

import importlib.resources
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from t2tp.atomic_file import write_text
from t2tp.text_table import text_table

_WIDTH = 100
# Facts that begin with this word stand out on the page.
WARNING = "Warning: "
_IS_WARNING = ' class="warning"'


class Part(Protocol):
    """A part of a section."""

    def text(self) -> Iterable[str]:
        """Yields lines for a terminal."""

    def html(self) -> str:
        """Renders the part for a page."""


@dataclass(frozen=True)
class Facts:
    """Sentences, one per line."""

    facts: Sequence[str]

    def text(self) -> Iterator[str]:
        """Yields a line per fact."""
        yield from self.facts

    def html(self) -> str:
        """Renders a list."""
        items = (
            f"<li{_IS_WARNING * fact.startswith(WARNING)}>{escape(fact)}</li>"
            for fact in self.facts
        )
        return f"<ul>{''.join(items)}</ul>"


@dataclass(frozen=True)
class Note:
    """A paragraph that explains other parts."""

    words: str

    def text(self) -> Iterator[str]:
        """Yields wrapped lines."""
        yield from textwrap.wrap(self.words, _WIDTH - 2)

    def html(self) -> str:
        """Renders a paragraph."""
        return f'<p class="faint">{escape(self.words)}</p>'


@dataclass(frozen=True)
class Rows:
    """Lines of characters that must stay aligned."""

    rows: Sequence[str]

    def text(self) -> Iterator[str]:
        """Yields the lines that fit into a terminal, cut at its width."""
        yield from (row[: _WIDTH - 2].rstrip() for row in self.rows)

    def html(self) -> str:
        """Renders all lines, with a bar to scroll."""
        return f'<pre class="scroll">{escape(chr(10).join(self.rows))}</pre>'


@dataclass(frozen=True)
class Drawing:
    """HTML that only the page has, such as a chart."""

    markup: str

    def text(self) -> Iterator[str]:
        """Yields nothing."""
        yield from ()

    def html(self) -> str:
        """Returns the HTML."""
        return self.markup


@dataclass(frozen=True)
class Table:
    """A table; a heading that begins with # marks a column of numbers.

    Attributes:
      bars: for each row, the length of a bar that the page draws in it, relative to the longest.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[float] = ()

    def text(self) -> Iterator[str]:
        """Yields aligned lines."""
        left = {i for i, heading in enumerate(self.headings) if not heading.startswith("#")}
        headings = [heading.removeprefix("#") for heading in self.headings]
        yield from text_table([headings, *self.rows], left).splitlines()

    def html(self) -> str:
        """Renders the table."""
        kinds = [' class="number"' if h.startswith("#") else "" for h in self.headings]

        def row(tag: str, cells: Sequence[str], bar: str = "") -> str:
            pairs = zip(kinds, cells, strict=True)
            html = "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in pairs)
            return f"<tr>{html}{bar}</tr>"

        longest = max([*self.bars, 0.0]) or 1.0
        bars = [
            f'<td><div class="bar" style="width:{16 * bar / longest:.2f}rem"></div></td>'
            for bar in self.bars
        ] or [""] * len(self.rows)
        head = row(
            "th", [h.removeprefix("#") for h in self.headings], "<th></th>" * bool(self.bars)
        )
        body = "".join(row("td", cells, bar) for cells, bar in zip(self.rows, bars, strict=True))
        return f'<div class="scroll"><table>{head}{body}</table></div>'


@dataclass(frozen=True)
class Card:
    """A thing with a drawing and facts.

    Attributes:
      shape: text next to the name.
      drawing: HTML of the drawing.
    """

    name: str
    shape: str
    facts: Sequence[str]
    drawing: str

    def text(self) -> Iterator[str]:
        """Yields the name, and the facts indented."""
        yield f"{self.name}  {self.shape}"
        yield from (f"    {fact}" for fact in self.facts)

    def html(self) -> str:
        """Renders the card."""
        heading = f"<h3>{escape(self.name)}</h3>" if self.name else ""
        return (
            f'<article class="card"><div class="drawing">{self.drawing}</div><div class="facts">'
            f'{heading}<p class="shape">{escape(self.shape)}</p>{Facts(self.facts).html()}</div>'
            "</article>"
        )


@dataclass(frozen=True)
class Cards:
    """Cards in a grid."""

    cards: Sequence[Card]

    def text(self) -> Iterator[str]:
        """Yields the cards, one after another."""
        for card in self.cards:
            yield from card.text()

    def html(self) -> str:
        """Renders the grid."""
        return f'<div class="cards">{"".join(card.html() for card in self.cards)}</div>'


@dataclass(frozen=True)
class Section:
    """A section of a report; `anchor` is its name in links of the page."""

    anchor: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    """A report: `print` it, or `save` it as an HTML page with diagrams."""

    title: str
    sections: Sequence[Section]

    def __str__(self) -> str:
        blocks = [self.title]
        for section in self.sections:
            lines = [f"  {line}".rstrip() for part in section.parts for line in part.text()]
            if lines:
                blocks.append("\n".join([section.title, *lines]))
        return "\n\n".join(blocks)

    def html(self) -> str:
        """Returns the report as one page, without JavaScript and without other files."""
        style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
        links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in self.sections)
        body = "".join(
            f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2>'
            f"{''.join(part.html() for part in s.parts)}</section>"
            for s in self.sections
        )
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>\n{style}</style></head><body>"
            f"<h1>{escape(self.title)}</h1><nav>{links}</nav>{body}</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the HTML page atomically.

        Raises:
          OSError: the file cannot be written.
        """
        write_text(path, self.html())
