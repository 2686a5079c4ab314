"""Listeners that only this host's loopback interface reaches."""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from t2tp.processes.loopback import accept_only_loopback, check_filtered, is_loopback, listeners
from t2tp.processes.rendezvous import free_port
from tests import network
from tests.patience import wait_until
from tests.program.reaching import connects, own_address


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_loopback_reaches_a_filtered_listener(family):
    own = own_address()
    if own is None:
        pytest.skip("this host has no interface but loopback")
    dual = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.1", "127.0.0.9", *(["::1"] if dual else [])]
        assert all(connects(host, port) for host in [*hosts, own])
        accept_only_loopback(server.fileno())
        check_filtered(port)
        assert all(connects(host, port) for host in hosts)
        assert not connects(own, port)


def test_only_the_listeners_at_the_port_are_filtered():
    own = own_address() or "127.0.0.1"
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        accept_only_loopback(one.fileno())
        assert connects(own, other.getsockname()[1])


def test_a_listener_without_a_filter_is_noticed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            check_filtered(port)
    with pytest.raises(OSError, match=str(port)):
        check_filtered(port)


# Connects to ports of a host again and again until a file exists; prints how often it was accepted.
HAMMER = """
import pathlib, socket, sys
done, tries, address, *ports = sys.argv[1:]
accepted = 0
while not pathlib.Path(done).exists():
    for port in map(int, ports):
        try:
            socket.create_connection((address, port), timeout=0.2).close()
            accepted += 1
        except OSError:
            pass
    with open(tries, "a") as file:
        file.write(".")
print("accepted", accepted)
"""


@pytest.mark.ci_only
@pytest.mark.slow
@pytest.mark.skipif(bool(network.missing()), reason=network.missing())
def test_no_connection_of_another_host_is_ever_accepted(tmp_path: Path):
    """Another host tries to connect again and again while the processes of a run start.

    Process 0 listens and waits for process 1 until the other host has tried five more times.
    """
    go, done, tries = (tmp_path / name for name in ("go", "done", "tries"))
    ports = [free_port(), free_port()]
    phases = [sys.executable, "-m", "tests.processes.phases", "starting"]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    said = [tmp_path / f"said{number}" for number in range(3)]
    with network.Network(2) as hosts, contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(path.open("w")) for path in said]
        hammer = [sys.executable, "-c", HAMMER, str(done), str(tries), network.address(0)]
        other = hosts.start(1, [*hammer, *map(str, ports)], os.environ, outputs[2])
        for number in range(2):
            config = {"cluster": cluster, "task": {"type": "worker", "index": number}}
            own = {"TF_CONFIG": json.dumps(config), "START_WHEN": str(go), "T2TP_SECRET": "x"}
            hosts.start(0, phases, {**os.environ, **own}, outputs[number])
        wait_until(lambda: "there" in said[1].read_text())  # Process 0 listens.
        before = len(tries.read_text())
        wait_until(lambda: len(tries.read_text()) > before + 5)
        go.touch()
        wait_until(lambda: all("connected" in path.read_text() for path in said[:2]))
        done.touch()
        other.wait()
    assert "accepted 0" in said[2].read_text()


def test_listeners_are_found_and_connections_are_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert [found.getsockname()[1] for found in listeners([port])] == [port]
    assert not list(listeners([port]))


def test_addresses_of_the_loopback_interface_and_of_others():
    own = ["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"]
    others = ["node7:1", "10.0.0.1:1", "0.0.0.0:1", "localhost.example:1"]
    assert [address for address in own + others if is_loopback(address)] == own
