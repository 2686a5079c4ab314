"""One of two processes that save step 5 together; its arguments are DIRECTORY PROCESS_ID."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from t2tp.checkpoint import save
from tests.checkpoint import samples
from tests.patience import PATIENCE


def main() -> None:
    directory, process_id = Path(sys.argv[1]), int(sys.argv[2])

    def barrier(name: str) -> None:
        (directory / f"{name}-{process_id}").touch()
        deadline = time.monotonic() + PATIENCE
        while not (directory / f"{name}-{1 - process_id}").exists():
            if time.monotonic() > deadline:
                sys.exit("the other process did not come")
            time.sleep(0.01)

    save(
        directory / "run",
        5,
        samples.halves(5)[process_id],
        {"seen": 50},
        process_id=process_id,
        num_processes=2,
        barrier=barrier,
    )
