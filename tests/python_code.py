"""Code in an interpreter of its own."""

import subprocess
import sys


def run_code(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Runs code, which has to succeed; returns what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done
