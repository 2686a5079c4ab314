"""JSON messages between the processes of a run, signed with the run's secret.

Process 0 does not know who connects to it. So it sends a challenge (a random number), and both
sides sign their messages with an HMAC (RFC 2104) keyed by the run's secret. The signature of the
first message covers the challenge, and the signature of each later message covers the previous
signature. So no message is accepted without the secret, and a recorded message is useless on
another connection. Messages are not encrypted, because they contain only the addresses and settings
of the processes.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import time
from typing import Any

SECRET_VARIABLE = "T2TP_SECRET"
_MAX_BYTES = 1 << 20  # Per message; the addresses of 10,000 processes take a quarter of it.
_REFUSED = b"refused"
_CHALLENGE = re.compile(rb"[0-9a-f]{32}")


class WrongSecretError(ValueError):
    """The other side does not have the secret of the run."""


def run_secret() -> bytes:
    """Returns the run's secret from the environment; empty if there is none."""
    return os.environ.get(SECRET_VARIABLE, "").encode()


class Channel:
    """A connection to one other process.

    A deadline is a time on the clock `time.monotonic()`. Methods with a deadline raise OSError if
    the deadline passes or the connection is lost.

    Attributes:
      connection: the connection, on which nothing else may be sent or received.
    """

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        """Takes ownership of a connection; `secret` is the run's secret."""
        self.connection = connection
        self._secret = secret
        self._before = b""  # The challenge or previous signature, which the next signature covers.

    def challenge(self, deadline: float) -> None:
        """Sends the challenge. Process 0 calls this before any message."""
        self._before = secrets.token_hex(16).encode()
        self._send_line(self._before, deadline)

    def accept_challenge(self, deadline: float) -> None:
        """Receives the challenge. Processes other than 0 call this before any message.

        Raises:
          ValueError: the other side is not process 0 of a run.
        """
        line = self._receive_line(deadline)
        if not _CHALLENGE.fullmatch(line):
            raise ValueError("The other side sends no challenge.")
        self._before = line

    def send(self, message: Any, deadline: float) -> None:
        """Sends a message, a value that JSON can represent.

        Raises:
          OSError: the connection is lost or timed out.
        """
        nonce = secrets.token_hex(16).encode()
        body = json.dumps(message).encode()
        signature = self._signature(nonce, body)
        self._send_line(b" ".join([signature, nonce, body]), deadline)
        self._before = signature

    def receive(self, deadline: float) -> Any:
        """Receives a message.

        Raises:
          WrongSecretError: the sender does not have this process's secret.
          ValueError: the data are not a message from a process of a run.
        """
        line = self._receive_line(deadline)
        if line == _REFUSED:
            raise WrongSecretError("The other side has another secret.")
        signature, nonce, body = line.split(b" ", 2)
        if not hmac.compare_digest(signature, self._signature(nonce, body)):
            raise WrongSecretError("The message is not signed with the run's secret.")
        self._before = signature
        try:
            return json.loads(body)
        except RecursionError as error:
            raise ValueError("The message is nested too deeply.") from error

    def refuse(self, deadline: float) -> None:
        """Rejects the other side because its secret differs."""
        self._send_line(_REFUSED, deadline)

    def is_open(self) -> bool:
        """Whether the connection is open. Call this only while the other side sends nothing."""
        self.connection.settimeout(0.0)
        try:
            return self.connection.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _signature(self, nonce: bytes, body: bytes) -> bytes:
        signed = b" ".join([self._before, nonce, body])
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest().encode()

    def _send_line(self, line: bytes, deadline: float) -> None:
        self.connection.settimeout(_left(deadline))
        self.connection.sendall(line + b"\n")

    def _receive_line(self, deadline: float) -> bytes:
        """Reads one line. The two sides send alternately, so no data follow the line."""
        received = bytearray()
        while not received.endswith(b"\n"):
            self.connection.settimeout(_left(deadline))
            data = self.connection.recv(65536)
            if not data:
                raise ConnectionError("closed")
            received += data
            if len(received) > _MAX_BYTES:
                raise ValueError(f"A message has at most {_MAX_BYTES} bytes.")
        return bytes(received[:-1])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
