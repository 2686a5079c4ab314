"""The shell of the HTML pages of layouts and plans: one file each, without JavaScript."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2026; --faint: #5d6673;
  --line: #d5dae1; --card: #f6f8fa; --hatch: #c3cad3; --copy: #e9edf2; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e4e8ee;
  --faint: #9aa5b3; --line: #343b45; --card: #1c2128; --hatch: #b1bac6; --copy: #2a313b;
  --warn: #ffb86b; } }
body { margin: 0 auto; max-width: 1180px; padding: 1.2rem; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font: 600 .95rem/1.3 ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; }
p { margin: .2rem 0; }
nav a { margin-right: 1rem; }
a { color: inherit; }
code, .shape { font-family: ui-monospace, monospace; font-size: .88rem; overflow-wrap: anywhere; }
.faint, figcaption { color: var(--faint); font-size: .88rem; }
.warning { color: var(--warn); font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr));
  gap: .8rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .7rem .8rem; display: flex; gap: 1rem; align-items: flex-start; flex-wrap: wrap; }
.card > .drawing { flex: 0 0 auto; min-width: min(14rem, 100%); }
.card > .facts { flex: 1 1 15rem; min-width: 0; }
.card ul { margin: .35rem 0 0; padding-left: 1.1rem; font-size: .88rem; }
.drawing { overflow-x: auto; max-width: 100%; }
svg { display: block; }
svg rect { stroke: #3b434e; stroke-width: .8; }
svg g:hover > rect { stroke-width: 2.2; }
svg .copy { fill: var(--copy); stroke: var(--line); }
svg text { font: 10.5px ui-monospace, monospace; }
svg .label { fill: var(--faint); }
svg .holder { fill: #14171c; text-anchor: middle; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0;
  border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { background: #5b8def; height: .7rem; border-radius: 3px; min-width: 1px; }
.total td { font-weight: 600; background: var(--card); }
.scroll { overflow-x: auto; }
.legend span { margin-right: 1.1rem; white-space: nowrap; font-size: .88rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  border-radius: 2px; vertical-align: -1px; }
section { break-inside: avoid-page; }
@media print { body { max-width: none; padding: 0; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; } nav { display: none; } h2 { margin-top: 1rem; } }
"""


def html_page(
    title: str,
    sections: Mapping[str, tuple[str, Iterable[str]]],
    *,
    style: str = "",
    intro: str = "",
    footer: str = "",
) -> str:
    """Renders a page.

    Args:
      title: title of the page, as text.
      sections: heading and HTML of each section, by the name to link to.
      style: CSS of this page only.
      intro: HTML before the sections.
      footer: HTML after the sections.
    """
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, (heading, _) in sections.items())
    body = "".join(
        f'<section id="{name}"><h2>{heading}</h2>{"".join(parts)}</section>'
        for name, (heading, parts) in sections.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body>"
        f"<h1>{escape(title)}</h1><nav>{links}</nav>{intro}{body}"
        f'<footer class="faint">{footer}</footer></body></html>\n'
    )


def legend(colors: Mapping[str, str]) -> str:
    """Names colors."""
    items = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )
    return f'<p class="legend">{items}</p>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Renders a table of HTML cells; a heading that begins with # marks a column of numbers."""
    kinds = [' class="number"' if heading.startswith("#") else "" for heading in headings]

    def row(tag: str, cells: Sequence[str]) -> str:
        made = (f"<{tag}{k}>{c}</{tag}>" for k, c in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    head = row("th", [heading.removeprefix("#") for heading in headings])
    return f'<div class="scroll"><table>{head}{"".join(row("td", r) for r in rows)}</table></div>'
