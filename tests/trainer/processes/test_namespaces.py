"""Launchers on hosts of their own: a link is cut, another is bad. The commands take no time."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from benchmarks.cluster import network
from tests.trainer.processes.launchers import LAUNCH, PATIENCE, POLITE, ROOT, python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]


def test_a_host_that_is_cut_off_is_left_and_comes_back_over_a_bad_link(tmp_path: Path):
    """Host 1 is behind a link with 5 % loss and 100 ms; host 2's link is cut and mended."""
    done = tmp_path / "done"
    command = python(f"{POLITE}while not os.path.exists({str(done)!r}): time.sleep(0.05)")
    hosts = ",".join(f"{network.address(host)}:8470" for host in range(3))
    environment = {**os.environ, "T2TP_SECRET": "for a test", "PYTHONPATH": str(ROOT)}
    said = [tmp_path / f"host{host}" for host in range(3)]

    def eventually(host: int, pattern: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, said[host].read_text()):
            assert time.monotonic() < deadline, [each.read_text() for each in said]
            time.sleep(0.1)

    with network.Network(3, {1: network.BadLink(0.05, 0.05)}) as hosts_there:
        running = []
        for host in range(3):
            launch = [*LAUNCH, "-n", "1", f"--hosts={hosts}", f"--host_id={host}"]
            launch += ["--host_timeout=4", "--max_restarts=99", *command]
            with said[host].open("w") as output:
                running.append(hosts_there.start(host, launch, environment, output))
        for host in range(3):
            eventually(host, f"round 1 process {host} of 3")
        hosts_there.cut(2)
        # On a busy machine there may have been rounds before; any host may lead.
        eventually(0, r"host.* 2.* (is|are) lost")
        eventually(0, r"round \d+ process 0 of 1")
        hosts_there.connect(2)
        eventually(2, "a host is back")
        done.touch()
        assert [process.wait(PATIENCE) for process in running] == [0, 0, 0]
