"""The commands that the README and the pages of docs/ show, and how a test runs them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.warm_processes import WarmProcess

REPOSITORY = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")))

# Programs of others, and commands that install or build.
NOT_OURS = ("export", "make", "pip", "python", "tensorboard")

# What says, as `diff` does, that two things are different.
_DIFFERENT = {"t2tp_inspect_checkpoint": 1}

# Those that start other processes.
_COLD = ("t2tp_datagen", "t2tp_tune")

_FENCED = re.compile(r"^```(?:sh|bash)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`(t2tp_\w+ [^`]*--[^`]*)`")


def commands(page: str) -> list[list[str]]:
    """The words of each command in the blocks of a page, in its order."""
    text = (REPOSITORY / page).read_text("utf-8")
    found = [
        words
        for block in re.finditer(f"{_FENCED.pattern}|{_INDENTED.pattern}", text, _FENCED.flags)
        for words in _commands(block[1] or block[0])
    ]
    return [words for words in found if words[0] == "echo" or words[0].startswith("t2tp_")]


def inline_commands(page: str) -> list[list[str]]:
    """The words of each command with flags that stands in a sentence of a page."""
    text = (REPOSITORY / page).read_text("utf-8")
    return [shlex.split(command) for command in _INLINE.findall(text)]


def _commands(block: str) -> Iterator[list[str]]:
    for line in block.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*(?:\w+\$ )?(?:TF_CONFIG='[^']*' )?", "", line)
        if line.startswith(("echo ", "t2tp_")) and not line.startswith("t2tp_trainer: "):
            yield shlex.split(line, comments=True)


def run(words: Sequence[str], folder: Path, number: int, less: Mapping[str, str]) -> str:
    """Runs a command, which has to succeed, in a folder; returns what it wrote to stdout.

    Args:
      words: of the command.
      folder: the working directory.
      number: different for each command of a folder.
      less: words that are replaced, by those of a command that takes less time.
    """
    program, *arguments = [
        part for word in words for part in shlex.split(less.get(word, shlex.quote(word)))
    ]
    if program == "echo":
        text, _, path = arguments
        (folder / path).write_text(text + "\n", "utf-8")
        return ""
    if program in _COLD:
        command = [sys.executable, "-m", f"t2tp.trainer.{program}", *arguments]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{words}\n{ended.stderr}"
        return ended.stdout
    output = folder / f"output-{number}"
    main = f"t2tp.trainer.{program}:main"
    with WarmProcess(main, arguments, {}, output, directory=folder) as process:
        assert process.wait(300) in (0, _DIFFERENT.get(program, 0)), (
            f"{words}\n{process.err.read_text()}"
        )
    return process.out.read_text()
