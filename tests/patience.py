"""How long tests wait for a condition."""

import time
from collections.abc import Callable
from pathlib import Path

# Seconds until a test that hangs fails. Machines that run tests may be loaded, so a shorter wait
# would only make more tests fail.
PATIENCE = 600.0


def wait_until(is_so: Callable[[], bool], said: Path | None = None) -> None:
    """Waits for a condition; if it does not come, fails with the contents of the file `said`."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, said.read_text() if said else "it did not come"
        time.sleep(0.02)
