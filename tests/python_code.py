"""Runs code in a Python interpreter of its own."""

import subprocess
import sys


def run_code(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Runs code and checks that it succeeds; returns the ended process with its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done
