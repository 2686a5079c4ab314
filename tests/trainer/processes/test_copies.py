"""Parts in memory go to the next host, and come back to whom needs them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from t2tp.processes.messages import Channel
from t2tp.processes.rendezvous import free_port
from t2tp.trainer.memory_parts import Part, parts_directory, read_choice
from t2tp.trainer.processes.copies import Copies
from t2tp.trainer.processes.group import Group
from t2tp.trainer.processes.leader import Policy, Report
from t2tp.trainer.processes.plan import Plan

CONTENT = bytes(range(256)) * 9000  # More than a block.


def eventually(is_so) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def two_hosts(directory: Path):
    """Groups and copies of two hosts, with one process each."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    policy = Policy(2, 2, 1, host_timeout=2.0)
    with contextlib.ExitStack() as stack:
        found = []
        for host in range(2):
            (directory / str(host)).mkdir()
            copies = Copies(host, directory / str(host))
            report = Report(host, addresses=())
            group = Group(host, addresses, policy, report, b"secret", copies.services)
            stack.enter_context(group)
            stack.enter_context(contextlib.closing(copies))
            copies.start(group)
            found.append((copies, group))
        yield found


def test_a_part_is_copied_to_the_next_host_and_fetched_from_it(tmp_path):
    part = Part(1, 20, 0, 2, 4)
    with two_hosts(tmp_path) as ((first, own), (second, other)):
        plan = Plan(1, 0, (0, 1), ("a:1", "b:1"))
        first.prepare(own, plan)
        path = parts_directory(tmp_path / "0") / part.name
        path.write_bytes(CONTENT)
        eventually(lambda: second.names() == (part.name,))
        copy = parts_directory(tmp_path / "1") / part.name
        assert copy.read_bytes() == CONTENT
        path.unlink()
        again = Plan(2, 0, (0, 1), ("a:1", "b:1"), memory=((part.name, 1),))
        first.prepare(own, again)
        assert path.read_bytes() == CONTENT
        assert read_choice(tmp_path / "0") == [part.name]
        second.prepare(other, again)  # Its processors are others.
        assert read_choice(tmp_path / "1") == []


@pytest.mark.slow
def test_half_a_part_is_never_there(tmp_path, monkeypatch):
    """The sender stops in the middle: the copy gets no name, and no file is left."""

    def break_off(self, file, size, seconds):
        self._connection.sendall(file.read(size // 2))
        raise OSError("lost")

    part = Part(1, 20, 0, 2, 4)
    with two_hosts(tmp_path) as ((first, own), (second, _)):
        monkeypatch.setattr(Channel, "send_file", break_off)
        (parts_directory(tmp_path / "0") / part.name).write_bytes(CONTENT)
        first.prepare(own, Plan(1, 0, (0, 1), ("a:1", "b:1")))
        there = parts_directory(tmp_path / "1")
        eventually(lambda: any(there.iterdir()))
        monkeypatch.undo()
        eventually(lambda: second.names() == (part.name,))
        eventually(lambda: [path.name for path in there.iterdir()] == [part.name])
        assert (there / part.name).read_bytes() == CONTENT
