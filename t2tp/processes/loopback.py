"""Blocks other hosts from TensorFlow's server when all processes of a run share a host.

TensorFlow's gRPC server listens on all interfaces, without encryption or authentication. Anyone who
reaches it can read and write files with the rights of the user who trains. The server cannot be
bound to an address, but Linux lets a process filter packets at its own sockets. With the filter
below, the kernel drops packets that do not come from this host's loopback interface, so no other
host can open a connection.

The filter must be attached before the socket listens: a connection that another host opened earlier
would stay open. TensorFlow calls `listen` while it starts, so this call is redirected to a function
that first attaches the filter.
"""

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator

from t2tp.processes.libc_calls import libc, replaced
from t2tp.processes.process_spec import split_address

_SO_ATTACH_FILTER = 26  # From asm-generic/socket.h; Python's socket module lacks it.

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
    """Yields the sockets on which this process accepts TCP connections, at all ports or `ports`.

    Each socket is a duplicate, open until the next one is requested.
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


@contextlib.contextmanager
def loopback_listeners() -> Iterator[None]:
    """Restricts listeners: those that TensorFlow opens in this context accept only this host."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, use_errno=True)
    def listen(descriptor: int, backlog: int) -> int:
        with contextlib.suppress(OSError):  # `check_filtered` reports it.
            accept_only_loopback(descriptor)
        return libc.listen(descriptor, backlog)

    with replaced("listen", listen):
        yield


def accept_only_loopback(descriptor: int) -> None:
    """Makes the kernel drop packets from other hosts at a socket.

    Raises:
      OSError: the system does not support the filter.
    """
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FROM_LOOPBACK)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(_FROM_LOOPBACK), ctypes.addressof(buffer))
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def check_filtered(port: int) -> None:
    """Checks that this process's listeners at a port have a filter.

    Raises:
      OSError: nothing listens there, or a listener has no filter.
    """
    filtered = [
        listener.getsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, 8 * len(_FROM_LOOPBACK))
        for listener in listeners([port])
    ]
    if not filtered or b"" in filtered:
        raise OSError(f"the listener at port {port} has no packet filter")
