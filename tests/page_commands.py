"""Runs the commands that the README and the pages of docs/ show."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from t2tp.trainer.cli import flag_groups
from t2tp.trainer.cli.programs import PROGRAMS
from tests.warm_processes import WarmProcess

# Exit codes that count as success: like `diff`, the program exits with 1 if it finds a difference.
_DIFFERENT = {"t2tp_inspect_checkpoint": 1}

# Programs that start other processes, so they cannot run in a forked process.
_COLD = ("t2tp_datagen", "t2tp_tune")


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
