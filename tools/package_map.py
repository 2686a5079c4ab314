"""Draws docs/packages.svg: the packages in layers. A package imports only packages below it.

    python tools/package_map.py
    python tools/package_map.py --check

With --check it writes nothing. It checks that the diagram is current, that docs/architecture.md
names files and definitions that exist, and that no package has too many modules.

The layers come from the contract in pyproject.toml that `make lint` checks; the rooms inside a
package are its directories.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parent.parent
DIAGRAM = REPOSITORY / "docs" / "packages.svg"
# Packages of t2tp that are directories at the top of the repository.
AT_THE_TOP = ("hparams", "problems", "trainer")
MAX_MODULES = 25  # of a package

WIDTH, ROW, BOX, GAP, MARGIN = 860, 52, 44, 10, 16
# Fill of each subject's packages.
SUBJECTS = {
    "trainer": "hsl(265, 65%, 88%)",
    "data and settings": "hsl(150, 55%, 85%)",
    "models": "hsl(35, 65%, 85%)",
    "around a program": "hsl(330, 60%, 88%)",
    "engine": "hsl(210, 65%, 88%)",
    "foundations": "hsl(0, 0%, 91%)",
}
# Package or module -> its subject and its contents.
PACKAGES = {
    "trainer": ("trainer", "programs, Experiment, Estimator, the directory of a run"),
    "huggingface": ("data and settings", "weights of transformers, in and out"),
    "evaluation": ("models", "lm-evaluation-harness"),
    "problems": ("data and settings", "data sets and streams"),
    "hparams": ("data and settings", "registered sets of hyperparameters"),
    "decoding": ("models", "beam search and sampling"),
    "layout_report": ("around a program", "cost of a layout"),
    "layout_check": ("around a program", "a layout compared with one device"),
    "planner": ("around a program", "cost of a step on a cluster"),
    "report": ("around a program", "sections as text and as a page"),
    "step": ("around a program", "order, work and memory of a step"),
    "models": ("models", "registered models: loss, prefill, decode step"),
    "layers": ("models", "attention, feed-forward, experts"),
    "metrics": ("models", "sums over a batch"),
    "optim": ("models", "optimizers, schedules, training step"),
    "checkpoint": ("around a program", "checkpoints of any layout"),
    "mtf": ("engine", "the language of models"),
    "mtf_compat": ("engine", "programs that import mesh_tensorflow"),
    "pipeline": ("engine", "stages of layers, and the schedules that run them"),
    "ops": ("engine", "operations in named dimensions, with their gradients and lowerings"),
    "program": ("engine", "a step as a TensorFlow function, called on every device"),
    "building": ("engine", "the mesh of a graph, its layers' settings, roles of variables"),
    "lowering": ("engine", "the graph as one processor's program; deferred sums"),
    "mesh": ("engine", "layout and collectives"),
    "processes": ("engine", "processes of a run: rendezvous, devices, messages"),
    "object_store": ("data and settings", "runs and data in buckets"),
    "upstream": ("engine", "the installed mesh-tensorflow"),
    "registry": ("foundations", "names"),
    "ranged_hparams": ("foundations", "ranges for search"),
    "hparam": ("foundations", "HParams"),
    "hparam_types": ("foundations", "types"),
    "hparam_limits": ("foundations", "ranges"),
    "best_metric": ("foundations", "the better checkpoint"),
    "argument_types": ("foundations", "wrong types"),
    "suggestions": ("foundations", "the nearest name"),
    "atomic_file": ("foundations", "files written whole"),
    "quiet": ("foundations", "TensorFlow's log"),
    "choices": ("foundations", "of hparams"),
    "scratch_directory": ("foundations", "left by no crash"),
    "typed_files": ("foundations", "one reader"),
    "toml": ("foundations", "tomllib"),
    "garbage_collection": ("foundations", "paused"),
    "optional_import": ("foundations", "packages that only some features need"),
    "text_table": ("foundations", "columns of text"),
}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.name { font-size: 13px; font-weight: 600; fill: #111 }
"""


def main() -> int:
    """Writes the diagram, or with --check prints the faults; returns the exit code."""
    if "--check" not in sys.argv:
        DIAGRAM.write_text(diagram(layers()), "utf-8")
        return 0
    wrong = list(faults())
    print("\n".join(wrong) or "package map: the packages match docs/architecture.md")
    return bool(wrong)


def faults() -> Iterator[str]:
    """Yields in which way the source differs from the diagram and from docs/architecture.md."""
    if DIAGRAM.read_text("utf-8") != diagram(layers()):
        yield f"{DIAGRAM.relative_to(REPOSITORY)} is old: run `python tools/package_map.py`"
    for top in ("t2tp", *AT_THE_TOP):
        for init in (REPOSITORY / top).rglob("__init__.py"):
            count = len(list(init.parent.glob("*.py"))) - 1
            if count > MAX_MODULES:
                package = init.parent.relative_to(REPOSITORY)
                yield f"{package} has {count} modules, and may have {MAX_MODULES}"
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    for name in re.findall(r"`((?:t2tp|trainer|problems|hparams|tools)/[\w/.]*)`", page):
        if not (REPOSITORY / name).exists():
            yield f"docs/architecture.md names {name}, which does not exist"
    for file, name in re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", page, re.MULTILINE):
        source = (REPOSITORY / file).read_text("utf-8")
        if not re.search(rf"^ *(?:def|class) {name}\b|^{name} = ", source, re.MULTILINE):
            yield f"docs/architecture.md names {name} of {file}, which does not define it"


def layers() -> list[list[str]]:
    """Returns the packages and modules of each layer, from the top."""
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    return [layer.replace(":", "|").replace(" ", "").split("|") for layer in contract["layers"]]


def diagram(rows: Sequence[Sequence[str]]) -> str:
    """Returns the diagram as SVG; `rows` are the layers from the top."""
    height = 2 * MARGIN + len(rows) * ROW + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The packages of t2tp; each imports only those below it</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, row in enumerate(rows):
        lines += _row(row, MARGIN + index * ROW)
    lines += _legend(MARGIN + len(rows) * ROW)
    return "\n".join([*lines, "</svg>\n"])


def _row(packages: Sequence[str], top: int) -> Iterator[str]:
    width = (WIDTH - 2 * MARGIN - (len(packages) - 1) * GAP) / len(packages)
    for index, package in enumerate(packages):
        left = MARGIN + index * (width + GAP)
        subject, caption = PACKAGES[package]
        rooms = " · ".join(_rooms(package))
        yield _box(left, top, width, BOX, SUBJECTS[subject])
        yield _text(package, left + 10, top + 19, "name")
        yield _text(f"{caption} ({rooms})" if rooms else caption, left + 10, top + 36)


def _legend(top: int) -> Iterator[str]:
    for index, (subject, fill) in enumerate(SUBJECTS.items()):
        left = MARGIN + index * 138
        yield _box(left, top, 16, 16, fill)
        yield _text(subject, left + 22, top + 13)


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}"/>'


def _text(text: str, x: float, y: float, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _rooms(package: str) -> list[str]:
    """Returns the packages inside a package."""
    parent = REPOSITORY if package in AT_THE_TOP else REPOSITORY / "t2tp"
    return sorted(init.parent.name for init in (parent / package).glob("*/__init__.py"))


if __name__ == "__main__":
    sys.exit(main())
