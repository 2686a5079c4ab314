"""The processes of a run meet before TensorFlow starts up in any of them.

TensorFlow's own start waits without end, deaf to signals, for a process that does not come. Here
process 0 listens at the meeting point for a while, the others tell it what they bring, and either
all get the list of addresses or all get the same sentence that says what does not fit. What they
say is signed (`t2tp.mesh.messages`), so that a stranger can neither join nor send them elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import queue
import random
import socket
import threading
import time
from dataclasses import dataclass

from t2tp.mesh.loopback import is_loopback
from t2tp.mesh.messages import SECRET_VARIABLE, Channel, WrongSecretError, run_secret
from t2tp.mesh.processes import Place, split_address

MEETING_SECONDS = 300.0
# Exit code of a process that ends because another one is gone.
LOST_EXIT_CODE = 3

_RETRY_SECONDS = 0.2
_MESSAGE_SECONDS = 10.0  # For a whole message, once connected.
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
      ValueError: the processes do not fit together, or are on several hosts without a secret.
    """
    if not run_secret() and not is_loopback(place.meeting_point):
        raise ValueError(
            f"Processes that meet at {place.meeting_point} need a secret, by which they know each"
            f" other: set {SECRET_VARIABLE} to the same random text for all of them, such as what"
            " `openssl rand -hex 16` prints."
        )
    if place.process_id == 0:
        return _host(place, brings, seconds)
    return _visit(place, brings, seconds)


@dataclass
class _Visitor:
    """A process that came to process 0.

    Attributes:
      channel: for the answer.
      process_id: number of the process, as it says.
      num_processes: how many there are, as it says.
      brings: what must be the same in all.
      address: `host:port` at which it serves the others.
    """

    channel: Channel
    process_id: int
    num_processes: int
    brings: str
    address: str

    @classmethod
    def of_hello(cls, channel: Channel, hello: dict) -> _Visitor:
        """Reads what a process says of itself.

        Raises:
          KeyError, TypeError, ValueError: it is not what a process says.
        """
        numbers = hello["process_id"], hello["num_processes"]
        texts = hello["brings"], hello["address"]
        if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
            raise TypeError(f"{numbers} are no numbers, or {texts} no texts.")
        split_address(hello["address"], "address")
        return cls(channel, *numbers, *texts)


def _host(place: Place, brings: str, seconds: float) -> list[str]:
    """Process 0: waits for the others, then tells all of them the same."""
    visitors: dict[int, _Visitor] = {}
    everybody: list[_Visitor] = []  # One of whom may have come again, after a crash.
    trouble: Exception | None = None
    deadline = time.monotonic() + seconds
    with _Reception(place, deadline) as reception:
        while len(visitors) < place.num_processes - 1:
            visitor = reception.next(deadline)
            if visitor is None:
                trouble = trouble or _absence(place, visitors, seconds, reception.refused)
                break
            everybody.append(visitor)
            misfit = _misfit(place, brings, visitor, visitors)
            if trouble is None and misfit is not None:
                trouble = misfit  # Those who are about to come are to hear it, too.
                deadline = min(deadline, time.monotonic() + _LATE_SECONDS)
            visitors[visitor.process_id] = visitor
        addresses = [place.address or place.meeting_point]
        addresses += [visitors[p].address for p in sorted(visitors)]
        missing = isinstance(trouble, MissingProcessError)
        answer = {"addresses": addresses, "error": str(trouble or ""), "missing": missing}
        for visitor in everybody:
            with contextlib.suppress(OSError):  # It may be gone; TensorFlow will find out.
                visitor.channel.send(answer, time.monotonic() + _MESSAGE_SECONDS)
            visitor.channel.close()
    if trouble is not None:
        raise trouble
    return addresses


def _visit(place: Place, brings: str, seconds: float) -> list[str]:
    """The others: go to process 0, say who they are, and hear what it says."""
    deadline = time.monotonic() + seconds
    with _connect(place, deadline, seconds) as connection:
        channel = Channel(connection, run_secret())
        own_host = connection.getsockname()[0]
        hello = {
            "process_id": place.process_id,
            "num_processes": place.num_processes,
            "brings": brings,
            "address": place.address or f"{own_host}:{free_port()}",
        }
        try:
            channel.accept_challenge(time.monotonic() + _MESSAGE_SECONDS)
            channel.send(hello, time.monotonic() + _MESSAGE_SECONDS)
            answer = channel.receive(max(deadline, time.monotonic()) + _MESSAGE_SECONDS)
        except WrongSecretError as error:
            raise ValueError(
                f"Process 0, at {place.meeting_point}, has another {SECRET_VARIABLE} than process"
                f" {place.process_id}: all processes of a run need the same."
            ) from error
        except (OSError, ValueError) as error:
            raise MissingProcessError(
                f"Process 0, at {place.meeting_point}, has gone while process {place.process_id}"
                " was waiting for the others."
            ) from error
    if answer["error"]:
        raise (MissingProcessError if answer["missing"] else ValueError)(answer["error"])
    return answer["addresses"]


class _Reception:
    """Where process 0 lets the others in: many at a time, so that nobody keeps others waiting.

    Attributes:
      refused: how many did not have the run's secret.
    """

    def __init__(self, place: Place, deadline: float) -> None:
        """Listens at the meeting point.

        Args:
          place: of process 0.
          deadline: by `time.monotonic()`; nobody is let in after it.

        Raises:
          ValueError: it is not possible to listen there.
        """
        self.refused = 0
        self._arrived: queue.Queue[_Visitor] = queue.Queue()
        self._closed = threading.Event()
        self._deadline = deadline
        self._listener = _listen(place.meeting_point)
        self._listener.settimeout(_RETRY_SECONDS)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> _Reception:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        self._listener.close()

    def next(self, deadline: float) -> _Visitor | None:
        """The next process to come; None if nobody does in time."""
        try:
            return self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: socket.socket) -> None:
        """Hears who connected; closes the connection if it is not one of us."""
        channel = Channel(connection, run_secret())
        deadline = min(self._deadline, time.monotonic() + _MESSAGE_SECONDS)
        try:
            channel.challenge(deadline)
            self._arrived.put(_Visitor.of_hello(channel, channel.receive(deadline)))
        except WrongSecretError:
            self.refused += 1
            with contextlib.suppress(OSError):
                channel.refuse(deadline)
            channel.close()
        except (OSError, ValueError, KeyError, TypeError):  # Somebody who looks at ports.
            channel.close()


def _absence(
    place: Place, visitors: dict[int, _Visitor], seconds: float, refused: int
) -> MissingProcessError:
    absent = [str(p) for p in range(1, place.num_processes) if p not in visitors]
    text = (
        f"Of {place.num_processes} processes, number {', '.join(absent)} did not come to"
        f" {place.meeting_point} within {seconds:.0f} s."
    )
    if refused:
        text += f" {refused} came with another {SECRET_VARIABLE}: all processes need the same."
    return MissingProcessError(text)


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
    if not 0 <= number < place.num_processes:
        return ValueError(
            f"A process was started as number {number} of {place.num_processes}: the numbers are 0"
            f" to {place.num_processes - 1}."
        )
    if visitor.brings != brings:
        return ValueError(
            f"Process {number} brings {visitor.brings}, and process 0 {brings}: they must be the"
            " same."
        )
    if number == 0 or (number in visitors and visitors[number].channel.is_open()):
        return ValueError(
            f"Two processes were started as number {number} of {place.num_processes}: each needs"
            " its own process_id."
        )
    return None


def _listen(meeting_point: str) -> socket.socket:
    """A socket that listens at the meeting point, on the interface that its host's name stands for.

    A name that stands for this host's loopback interface, as Debian's /etc/hosts has it for the
    host's own name, is not how others reach it; nor is an address that is not this host's own, but
    that of a router in front of it. Then all interfaces have to do.
    """
    port = split_address(meeting_point, "coordinator")[1]
    family, address = _interface(meeting_point)
    for host in dict.fromkeys([address, ""]):
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1024)
            return listener
        except OSError as error:
            listener.close()
            if host and error.errno == errno.EADDRNOTAVAIL:
                continue
            raise ValueError(
                f"Process 0 cannot serve at {meeting_point}: {error.strerror}. Choose another port,"
                " or end what uses it."
            ) from error
    raise AssertionError("All interfaces are always available.")


def _interface(meeting_point: str) -> tuple[socket.AddressFamily, str]:
    """The family and the address of the interface to listen on; "" for all of them."""
    host, port = split_address(meeting_point, "coordinator")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return socket.AF_INET, ""
    family, *_, address = sorted(found)[0]  # IPv4 before IPv6.
    if ipaddress.ip_address(address[0]).is_loopback and not is_loopback(meeting_point):
        return family, ""
    return family, str(address[0])


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
