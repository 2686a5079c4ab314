"""The process that renders a chat template; see `template_program`."""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("template_program.py")


class TemplateProcess:
    """A process that renders a template; started again for a rendering if it has ended."""

    def __init__(self, source: str, max_seconds: float) -> None:
        self._source, self._max_seconds = source, max_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def start(self) -> None:
        """Starts the process and compiles the template.

        Raises:
          ValueError: the source is not a template of Jinja, or takes too long or too much memory.
        """
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(self._max_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._process, self._owner)
        self._ask(self._source)

    def render(self, variables: dict[str, Any]) -> str:
        """Renders the template with variables that JSON can store.

        Raises:
          ValueError: the template fails, or takes too long or too much memory.
        """
        with self._lock:
            # A forked process must not share the pipes.
            if self._process is None or self._owner != os.getpid():
                self.start()
            return self._ask(variables)

    def _ask(self, request: object) -> str:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._process = None  # Until the answer has been read.
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            if process.wait() == -signal.SIGPROF:
                raise ValueError(f"it takes longer than {self._max_seconds:g} s")
            raise ValueError(f"its process ended with the exit code {process.returncode}")
        self._process = process
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        text: str = answer["text"]
        return text


def _end(process: subprocess.Popen[str], owner: int) -> None:
    """Ends the process; does nothing in a fork of the process's owner."""
    if os.getpid() == owner:
        process.kill()
        process.communicate()
