"""The frame of HTML pages about layouts and plans: one file each, without JavaScript."""

import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_page(
    title: str,
    sections: Mapping[str, tuple[str, Iterable[str]]],
    *,
    style: str = "",
    intro: str = "",
    footer: str = "",
) -> str:
    """Renders a page with HTML before (`intro`) and after (`footer`) the sections.

    `sections` has the heading and HTML of each section, by the name to link to. `style` is CSS of
    this page only.
    """
    common = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, (heading, _) in sections.items())
    body = "".join(
        f'<section id="{name}"><h2>{heading}</h2>{"".join(parts)}</section>'
        for name, (heading, parts) in sections.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{common}{style}</style></head><body>"
        f"<h1>{escape(title)}</h1><nav>{links}</nav>{intro}{body}"
        f'<footer class="faint">{footer}</footer></body></html>\n'
    )


def legend(colors: Mapping[str, str]) -> str:
    """Renders a legend, from names to colors."""
    items = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )
    return f'<p class="legend">{items}</p>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Renders a table of HTML cells. A heading that begins with # marks a column of numbers."""
    kinds = [' class="number"' if heading.startswith("#") else "" for heading in headings]

    def row(tag: str, cells: Sequence[str]) -> str:
        made = (f"<{tag}{k}>{c}</{tag}>" for k, c in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    head = row("th", [heading.removeprefix("#") for heading in headings])
    return f'<div class="scroll"><table>{head}{"".join(row("td", r) for r in rows)}</table></div>'
