"""Blocks other hosts from TensorFlow's server when all processes of a run share a host.

TensorFlow's gRPC server listens on all interfaces, without encryption or authentication: anyone who
reaches it can read and write files as the user who trains. It cannot be bound to an address. But
Linux lets a process filter packets at its own sockets: here, packets that do not come from this
host's loopback interface are dropped before a connection is accepted.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator

from t2tp.processes.process_spec import split_address

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; the socket module does not name it.

# Classic BPF (linux/filter.h): load a byte or a word of the packet, mask, jump, return.
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are into the IP header.
_ACCEPT, _DROP = 0xFFFFFFFF, 0

# (operation, jump if true, jump if false, operand); jumps count the instructions they skip.
_FROM_LOOPBACK = (
    (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),  # version of the IP header
    (_AND, 0, 0, 0xF0),
    (_JUMP_IF_EQUAL, 0, 3, 0x40),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),  # IPv4 source: 127.0.0.0/8?
    (_AND, 0, 0, 0xFF000000),
    (_JUMP_IF_EQUAL, 8, 9, 0x7F000000),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8),  # IPv6 source: ::1?
    (_JUMP_IF_EQUAL, 0, 7, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12),
    (_JUMP_IF_EQUAL, 0, 5, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 16),
    (_JUMP_IF_EQUAL, 0, 3, 0),
    (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 20),
    (_JUMP_IF_EQUAL, 0, 1, 1),
    (_RETURN, 0, 0, _ACCEPT),
    (_RETURN, 0, 0, _DROP),
)


def is_loopback(address: str) -> bool:
    """Whether an address `host:port` names the loopback interface."""
    host = split_address(address, "address")[0].strip("[]")
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def listeners(ports: Iterable[int] | None = None) -> Iterator[socket.socket]:
    """Yields the sockets on which this process accepts TCP connections.

    Args:
      ports: only those at these ports; None for all.

    Yields:
      A duplicate of each, open until the next one is requested.
    """
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            found = stack.enter_context(socket.socket(fileno=os.dup(int(descriptor))))
            if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            if found.family in (socket.AF_INET, socket.AF_INET6) and (
                ports is None or found.getsockname()[1] in ports
            ):
                yield found


def accept_only_loopback(port: int) -> None:
    """Makes this process's listeners at a port accept connections from this host only.

    Raises:
      OSError: nothing listens there, or the system does not support the filter.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FROM_LOOPBACK)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(_FROM_LOOPBACK), ctypes.addressof(buffer))
    filtered = 0
    for listener in listeners([port]):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        filtered += 1
    if not filtered:
        raise OSError(f"Nothing in this process listens at port {port}.")
