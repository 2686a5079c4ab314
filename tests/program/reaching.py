"""Finds out from which addresses a port of this host can be reached."""

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def own_address() -> str | None:
    """Returns this host's address on an interface other than loopback; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # An interface without an address.
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                address = socket.inet_ntoa(answer[20:24])
                if not address.startswith("127."):
                    return address
    return None


def connects(host: str, port: int) -> bool:
    """Returns whether a connection is accepted."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
