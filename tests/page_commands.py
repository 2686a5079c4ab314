"""Finds and runs the commands that the README and the pages of docs/ show."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.programs import PROGRAMS
from tests.warm_processes import WarmProcess

REPOSITORY = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")))

# Exit codes that count as success: like `diff`, the program exits with 1 if it finds a difference.
_DIFFERENT = {"t2tp_inspect_checkpoint": 1}

# Programs that start other processes, so they cannot run in a forked process.
_COLD = ("t2tp_datagen", "t2tp_tune")

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(t2tp_\w+ [^`]*--[^`]*)`")


def commands(page: str) -> list[list[str]]:
    """Returns the words of each command in the blocks of a page, in the page's order."""
    text = (REPOSITORY / page).read_text("utf-8")
    blocks = [code for language, code in _FENCED.findall(text) if language in ("", "sh")]
    found = [words for block in blocks for words in _commands(block)]
    return [words for words in found if words[0] == "echo" or words[0].startswith("t2tp_")]


def inline_commands(page: str) -> list[list[str]]:
    """Returns the words of each command with flags in the sentences of a page."""
    text = (REPOSITORY / page).read_text("utf-8")
    return [shlex.split(command) for command in _INLINE.findall(text)]


def _commands(block: str) -> Iterator[list[str]]:
    for line in block.replace("\\\n", "").splitlines():
        line = re.sub(r"^\s*(?:\w+\$ )?(?:TF_CONFIG='[^']*' )?", "", line)
        if line.startswith(("echo ", "t2tp_")) and not line.startswith("t2tp_trainer: "):
            yield shlex.split(line, comments=True)


def run(words: Sequence[str], directory: Path, number: int, less=MappingProxyType({})) -> str:
    """Runs a command in a directory and checks that it succeeds; returns its output.

    Args:
      words: words of the command.
      directory: the working directory.
      number: a number that no other command of the directory has.
      less: word of the command -> words of a faster command that replace it.
    """
    program, *arguments = [
        part for word in words for part in shlex.split(less.get(word, shlex.quote(word)))
    ]
    if program == "echo":
        text, _, path = arguments
        (directory / path).write_text(text + "\n", "utf-8")
        return ""
    if program in _COLD:
        command = [sys.executable, "-m", "t2tp.trainer.cli", program, *arguments]
        ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{words}\n{ended.stderr}"
        return ended.stdout + ended.stderr
    output = directory / f"output-{number}"
    main = f"t2tp.trainer.cli.programs:{program}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # As in a venv.
    with WarmProcess(main, arguments, {"PATH": path}, output, directory=directory) as process:
        assert process.wait() in (0, _DIFFERENT.get(program, 0)), (
            f"{words}\n{process.err.read_text()}"
        )
    return process.out.read_text() + process.err.read_text()


def check_flags(program: str, arguments: list[str]) -> None:
    """Checks the names of a command's flags; a page may leave values out."""
    known = set(flag_groups.define(PROGRAMS[program].groups))
    for argument in arguments:
        if argument.startswith("--"):
            name = re.match(r"--(\w+)", argument)[1]
            assert name in known or name.removeprefix("no") in known, argument
