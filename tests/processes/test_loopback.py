"""Listeners that only this host's loopback interface reaches."""

from __future__ import annotations

import socket

import pytest

from t2tp.processes.loopback import accept_only_loopback, is_loopback, listeners
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
        accept_only_loopback(port)
        assert all(connects(host, port) for host in hosts)
        assert not connects(own, port)


def test_only_the_listeners_at_the_port_are_filtered():
    own = own_address() or "127.0.0.1"
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        accept_only_loopback(one.getsockname()[1])
        assert connects(own, other.getsockname()[1])


def test_a_port_at_which_nothing_listens_is_refused():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(OSError, match=f"listens at port {port}"):
            accept_only_loopback(port)


def test_listeners_are_found_and_connections_are_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert [found.getsockname()[1] for found in listeners([port])] == [port]
    assert not list(listeners([port]))


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"])
def test_addresses_of_the_loopback_interface(address):
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["node7:1", "10.0.0.1:1", "0.0.0.0:1", "localhost.example:1"])
def test_addresses_that_other_hosts_reach(address):
    assert not is_loopback(address)
