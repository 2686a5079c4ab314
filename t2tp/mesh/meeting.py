"""The processes of a run meet before TensorFlow starts up in any of them.

TensorFlow's own start waits without end, deaf to signals, for a process that does not come. Here
process 0 listens at the meeting point for a while, the others tell it what they bring, and either
all get the list of addresses or all get the same sentence that says what does not fit.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator

from t2tp.mesh.processes import Place, split_address

MEETING_SECONDS = 300.0
# Exit code of a process that ends because another one is gone.
LOST_EXIT_CODE = 3

_RETRY_SECONDS = 0.2
_MESSAGE_SECONDS = 10.0  # To say one line, once connected.
_LATE_SECONDS = 3.0  # To come, after it is known that the processes do not fit together.


class MissingProcessError(RuntimeError):
    """Processes of the run did not come, or are gone."""


def meet(place: Place, brings: str, seconds: float = MEETING_SECONDS) -> list[str]:
    """Meets the other processes.

    Args:
      place: which process this is.
      brings: what must be the same in all processes, for people: `a mesh of 8 processors`.
      seconds: how long to wait for the others.

    Returns:
      the address `host:port` of each process, in order.

    Raises:
      MissingProcessError: not all came in time; names those who did not.
      ValueError: the processes do not fit together.
    """
    if place.process_id == 0:
        return _host(place, brings, seconds)
    return _visit(place, brings, seconds)


def _host(place: Place, brings: str, seconds: float) -> list[str]:
    """Process 0: waits for the others, then tells all of them the same."""
    visitors: dict[int, _Visitor] = {}
    everybody: list[_Visitor] = []  # One of whom may have come again, after a crash.
    trouble: Exception | None = None
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        port = split_address(place.meeting_point, "coordinator")[1]
        listener = stack.enter_context(_listen(port, place.meeting_point))
        while len(visitors) < place.num_processes - 1:
            visitor = _next_visitor(listener, deadline)
            if visitor is None:
                trouble = trouble or _absence(place, visitors, seconds)
                break
            stack.enter_context(visitor.connection)
            misfit = _misfit(place, brings, visitor, visitors)
            if trouble is None and misfit is not None:
                trouble = misfit  # Those who are about to come are to hear it, too.
                deadline = min(deadline, time.monotonic() + _LATE_SECONDS)
            visitors[visitor.process_id] = visitor
            everybody.append(visitor)
        addresses = [place.address or place.meeting_point]
        addresses += [visitors[p].address for p in sorted(visitors)]
        missing = isinstance(trouble, MissingProcessError)
        answer = {"addresses": addresses, "error": str(trouble or ""), "missing": missing}
        for visitor in everybody:
            visitor.answer(answer)
    if trouble is not None:
        raise trouble
    return addresses


def _visit(place: Place, brings: str, seconds: float) -> list[str]:
    """The others: go to process 0, say who they are, and hear what it says."""
    deadline = time.monotonic() + seconds
    with _connect(place, deadline, seconds) as connection:
        own_host = connection.getsockname()[0]
        hello = {
            "process_id": place.process_id,
            "num_processes": place.num_processes,
            "brings": brings,
            "address": place.address or f"{own_host}:{free_port()}",
        }
        connection.sendall(json.dumps(hello).encode() + b"\n")
        connection.settimeout(max(0.0, deadline - time.monotonic()) + _MESSAGE_SECONDS)
        try:
            answer = json.loads(_read_line(connection))
        except (OSError, ValueError) as error:
            raise MissingProcessError(
                f"Process 0, at {place.meeting_point}, has gone while process {place.process_id}"
                " was waiting for the others."
            ) from error
    if answer["error"]:
        raise (MissingProcessError if answer["missing"] else ValueError)(answer["error"])
    return answer["addresses"]


class _Visitor:
    """A process that came to process 0."""

    def __init__(self, connection: socket.socket, hello: dict) -> None:
        self.connection = connection
        self.process_id = int(hello["process_id"])
        self.num_processes = int(hello["num_processes"])
        self.brings = str(hello["brings"])
        self.address = str(hello["address"])

    def answer(self, answer: dict) -> None:
        with contextlib.suppress(OSError):  # It may be gone; TensorFlow will find out.
            self.connection.sendall(json.dumps(answer).encode() + b"\n")

    def is_waiting(self) -> bool:
        """Whether it is still there: it says nothing more, and its connection is open."""
        self.connection.settimeout(0.0)
        try:
            return self.connection.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.connection.settimeout(_MESSAGE_SECONDS)


def _next_visitor(listener: socket.socket, deadline: float) -> _Visitor | None:
    """The next process to come; None if nobody does in time."""
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return None
        connection.settimeout(min(_MESSAGE_SECONDS, left))
        try:
            return _Visitor(connection, json.loads(_read_line(connection)))
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()  # Somebody who looks at ports, not one of us.
    return None


def _absence(place: Place, visitors: dict[int, _Visitor], seconds: float) -> MissingProcessError:
    absent = [str(p) for p in range(1, place.num_processes) if p not in visitors]
    return MissingProcessError(
        f"Of {place.num_processes} processes, number {', '.join(absent)} did not come to"
        f" {place.meeting_point} within {seconds:.0f} s."
    )


def _misfit(
    place: Place, brings: str, visitor: _Visitor, visitors: dict[int, _Visitor]
) -> ValueError | None:
    """What is wrong with a visitor, if anything."""
    number = visitor.process_id
    if visitor.num_processes != place.num_processes:
        return ValueError(
            f"Process {number} was started as one of {visitor.num_processes}, and process 0 as one"
            f" of {place.num_processes}."
        )
    if visitor.brings != brings:
        return ValueError(
            f"Process {number} brings {visitor.brings}, and process 0 {brings}: they must be the"
            " same."
        )
    if number == 0 or (number in visitors and visitors[number].is_waiting()):
        return ValueError(
            f"Two processes were started as number {number} of {place.num_processes}: each needs"
            " its own process_id."
        )
    return None


@contextlib.contextmanager
def _listen(port: int, meeting_point: str) -> Iterator[socket.socket]:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"Process 0 cannot serve at {meeting_point}: {error.strerror}. Choose another port,"
                " or end what uses it."
            ) from error
        listener.listen(1024)
        yield listener
    finally:
        listener.close()


def _connect(place: Place, deadline: float, seconds: float) -> socket.socket:
    address = split_address(place.meeting_point, "coordinator")
    while True:
        try:
            return socket.create_connection(address, timeout=_MESSAGE_SECONDS)
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise MissingProcessError(
                    f"Process {place.process_id} of {place.num_processes} waited {seconds:.0f} s"
                    f" for process 0 at {place.meeting_point}: {error.strerror or error}."
                ) from error
            time.sleep(_RETRY_SECONDS)


def _read_line(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("closed")
        received += part
    return received


def free_port() -> int:
    """A port of this host that nobody uses, outside of the range that systems hand out to anyone.

    Raises:
      OSError: none was found.
    """
    for _ in range(100):
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("No free port was found between 20000 and 32000.")
