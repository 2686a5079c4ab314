"""Hooks of mkdocs, which add pages to the site that are not files of docs/.

The added pages are the README as the front page, all other pages at the root of the repository, the
reference that is generated from the code, and a page for each source file that a page links to.
Links to the files behind these pages are redirected to the pages. A link that is broken in the
repository is not changed, so that the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from tools import reference  # noqa: E402  (the repository is no package)

# Pages at the root of the repository -> their paths in the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
LANGUAGES = {
    ".py": "python",
    ".ipynb": "json",
    ".sh": "sh",
    ".toml": "toml",
    ".md": "markdown",
    ".svg": "xml",
}
# The target of a link without its #anchor.
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for name, path in ROOT_PAGES.items():
        texts[name] = (REPOSITORY / name).read_text("utf-8")
        files.append(File.generated(config, path, content=with_links(name, texts[name])))
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for source in sorted({each for name, text in texts.items() for each in sources(name, text)}):
        files.append(File.generated(config, _page_of(source), content=source_page(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirects those links of a page that lead out of docs/."""
    if page.file.generated_by is not None:
        return markdown
    return with_links(f"docs/{page.file.src_uri}", markdown)


def with_links(name: str, text: str) -> str:
    """Returns a page's text, with links to files of the repository redirected to the site's pages.

    Args:
      name: path of the page in the repository.
      text: its Markdown.
    """
    page_dir = posixpath.dirname(_page_of(name))

    def redirected(match: re.Match[str]) -> str:
        target = _in_repository(name, match[1])
        if not (REPOSITORY / target).is_file():
            return match[1]
        return posixpath.relpath(_page_of(target), page_dir or ".")

    return _LINK.sub(redirected, text)


def sources(name: str, text: str) -> set[str]:
    """Returns the source files that a page links to: files that are not pages themselves."""
    targets = {_in_repository(name, link) for link in _LINK.findall(text)}
    return {
        target
        for target in targets
        if _page_of(target).startswith("source/") and (REPOSITORY / target).is_file()
    }


def source_page(source: str) -> str:
    """Returns a page that shows a source file."""
    language = LANGUAGES.get(posixpath.splitext(source)[1], "text")
    text = (REPOSITORY / source).read_text("utf-8")
    return f"# {source}\n\n`````{language}\n{text.rstrip()}\n`````\n"


def _in_repository(name: str, link: str) -> str:
    """Returns the path of a link's target in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link))


def _page_of(path: str) -> str:
    """Returns the path that a file of the repository has in the site."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.md"
