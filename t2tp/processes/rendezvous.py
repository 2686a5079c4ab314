"""The rendezvous of a run's processes, before TensorFlow is initialized in any of them.

If a process does not join, TensorFlow's own start-up waits forever and ignores signals. In this
rendezvous, process 0 listens at the coordinator address for a limited time, and the other processes
send it their configuration. Then either all processes receive the list of addresses, or all receive
the same error. Messages are signed (`t2tp.processes.messages`), so that an outsider can neither
join the run nor redirect a process.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from t2tp.processes.libc_calls import exit_if_broken
from t2tp.processes.loopback import is_loopback
from t2tp.processes.messages import SECRET_VARIABLE, Channel, WrongSecretError, run_secret
from t2tp.processes.process_spec import ProcessSpec, split_address

RENDEZVOUS_SECONDS = 300.0

_RETRY_SECONDS = 0.2
_ACCEPT_SECONDS = 0.02  # How long process 0 waits for a connection before it checks for hellos.
_MESSAGE_SECONDS = 10.0  # Time limit for a whole message, once connected.
# Open until this process ends: if it ends early, the others may still be waiting for it.
_kept: list[Channel] = []
# After an error, process 0 waits this time for more processes, so that they receive the error too.
_LATE_SECONDS = 3.0

# The addresses of the processes, in order, and this process's open connections to the others.
RunMembers = tuple[list[str], list[Channel]]


class MissingProcessError(RuntimeError):
    """Processes of the run have not joined in time, or are lost."""


def rendezvous(spec: ProcessSpec, brings: str, seconds: float = RENDEZVOUS_SECONDS) -> RunMembers:
    """Waits for all processes of the run and returns their addresses.

    Args:
      spec: which process this is.
      brings: a description of the settings that must be equal in all processes, such as `a mesh of
        8 processors`.
      seconds: how long to wait for the other processes.

    Returns:
      The address `host:port` of each process, in order, and the open connections, for
      `ending_together`.

    Raises:
      MissingProcessError: some processes have not joined in time; the error names them.
      ValueError: the processes contradict each other, or there is no secret and the coordinator's
        address is not loopback.
    """
    if not run_secret() and not is_loopback(spec.coordinator):
        raise ValueError(
            f"Processes that meet at {spec.coordinator} need a secret, by which they know each"
            f" other: set {SECRET_VARIABLE} to the same random text for all of them, such as what"
            " `openssl rand -hex 16` prints."
        )
    if spec.process_id == 0:
        return _serve(spec, brings, seconds)
    return _register(spec, brings, seconds)


@contextlib.contextmanager
def ending_together(channels: Sequence[Channel]) -> Iterator[None]:
    """Ends this process if another one ends inside the context, in which TensorFlow starts.

    TensorFlow would wait for the lost process forever. Process 0 has a connection to each other
    process, and ends if one of them breaks; the others then lose their connection to process 0.
    """
    with exit_if_broken([channel.connection.fileno() for channel in channels]):
        if not all(channel.is_open() for channel in channels):
            raise MissingProcessError("Another process has ended while TensorFlow started.")
        yield
    _kept.extend(channels)


@dataclass
class _JoiningProcess:
    """A process that joins, as process 0 sees it.

    Attributes:
      channel: the connection that awaits the answer.
      process_id: the process's index, as it reported it.
      num_processes: the number of processes in the run, as the process reported it.
      brings: the process's description of the settings that must be equal in all processes.
      address: `host:port` at which the process serves other processes.
    """

    channel: Channel
    process_id: int
    num_processes: int
    brings: str
    address: str

    @classmethod
    def from_hello(cls, channel: Channel, hello: dict) -> _JoiningProcess:
        """Reads the hello message of a process."""
        numbers = hello["process_id"], hello["num_processes"]
        texts = hello["brings"], hello["address"]
        if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
            raise TypeError(f"{numbers} are no numbers, or {texts} no texts.")
        split_address(hello["address"], "address")
        return cls(channel, *numbers, *texts)


def _serve(spec: ProcessSpec, brings: str, seconds: float) -> RunMembers:
    """Waits as process 0 for the other processes, and sends all of them the same answer."""
    joined: dict[int, _JoiningProcess] = {}
    processes: list[_JoiningProcess] = []  # A process may join twice, after a crash.
    error: Exception | None = None
    deadline = time.monotonic() + seconds
    with listen(spec.coordinator) as listener:
        server = _RendezvousServer(listener, deadline)
        while len(joined) < spec.num_processes - 1:
            process = server.next(deadline)
            if process is None:
                error = error or _missing(spec, joined, seconds, server.num_rejected)
                break
            processes.append(process)
            mismatch = _mismatch(spec, brings, process, joined)
            if error is None and mismatch is not None:
                error = mismatch  # Processes that are about to join receive it too.
                deadline = min(deadline, time.monotonic() + _LATE_SECONDS)
            joined[process.process_id] = process
        addresses = [spec.address or spec.coordinator]
        addresses += [joined[p].address for p in sorted(joined)]
        missing = isinstance(error, MissingProcessError)
        answer = {"addresses": addresses, "error": str(error or ""), "missing": missing}
        for process in processes:
            with contextlib.suppress(OSError):  # TensorFlow will detect a lost process.
                process.channel.send(answer, time.monotonic() + _MESSAGE_SECONDS)
            if error is not None or joined[process.process_id] is not process:
                process.channel.connection.close()
    if error is not None:
        raise error
    return addresses, [process.channel for process in joined.values()]


def _register(spec: ProcessSpec, brings: str, seconds: float) -> RunMembers:
    """Sends this process's hello to process 0, and returns the addresses of all processes."""
    deadline = time.monotonic() + seconds
    channel = _connect(spec, deadline, seconds)
    own_host = channel.connection.getsockname()[0]
    hello = {
        "process_id": spec.process_id,
        "num_processes": spec.num_processes,
        "brings": brings,
        "address": spec.address or f"{own_host}:{free_port()}",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(channel.connection.close)
        try:
            channel.send(hello, time.monotonic() + _MESSAGE_SECONDS)
            answer = channel.receive(max(deadline, time.monotonic()) + _MESSAGE_SECONDS)
        except WrongSecretError as error:
            raise ValueError(
                f"Process 0, at {spec.coordinator}, has another {SECRET_VARIABLE} than process"
                f" {spec.process_id}: all processes of a run need the same."
            ) from error
        except (OSError, ValueError) as error:
            raise MissingProcessError(
                f"Process 0, at {spec.coordinator}, has gone while process {spec.process_id}"
                " was waiting for the others."
            ) from error
        if answer["error"]:
            raise (MissingProcessError if answer["missing"] else ValueError)(answer["error"])
        stack.pop_all()
    return answer["addresses"], [channel]


class _RendezvousServer:
    """Process 0's server. It handles connections concurrently, so that none blocks the others.

    Attributes:
      num_rejected: number of connections without the run's secret.
    """

    def __init__(self, listener: socket.socket, deadline: float) -> None:
        """Handles connections until `deadline`, on the clock `time.monotonic()`."""
        self.num_rejected = 0
        self._joining: queue.Queue[_JoiningProcess] = queue.Queue()
        self._deadline = deadline
        self._listener = listener
        self._listener.settimeout(_ACCEPT_SECONDS)

    def next(self, deadline: float) -> _JoiningProcess | None:
        """Accepts connections and returns the next process that joins; None if time is over."""
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self._joining.get_nowait()
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._handshake, args=(connection,), daemon=True).start()
        return None

    def _handshake(self, connection: socket.socket) -> None:
        """Receives a connection's hello; closes connections that do not belong to the run."""
        channel = Channel(connection, run_secret())
        deadline = min(self._deadline, time.monotonic() + _MESSAGE_SECONDS)
        try:
            channel.challenge(deadline)
            self._joining.put(_JoiningProcess.from_hello(channel, channel.receive(deadline)))
        except WrongSecretError:
            self.num_rejected += 1
            with contextlib.suppress(OSError):
                channel.refuse(deadline)
            channel.connection.close()
        except (OSError, ValueError, KeyError, TypeError):  # A port scanner, say.
            channel.connection.close()


def _missing(
    spec: ProcessSpec, joined: dict[int, _JoiningProcess], seconds: float, refused: int
) -> MissingProcessError:
    absent = [str(p) for p in range(1, spec.num_processes) if p not in joined]
    text = (
        f"Of {spec.num_processes} processes, number {', '.join(absent)} did not come to"
        f" {spec.coordinator} within {seconds:.0f} s."
    )
    if refused:
        text += f" {refused} came with another {SECRET_VARIABLE}: all processes need the same."
    return MissingProcessError(text)


def _mismatch(
    spec: ProcessSpec, brings: str, process: _JoiningProcess, joined: dict[int, _JoiningProcess]
) -> ValueError | None:
    """Returns an error if a joining process contradicts process 0 or another one; else None."""
    number = process.process_id
    if process.num_processes != spec.num_processes:
        return ValueError(
            f"Process {number} was started as one of {process.num_processes}, and process 0 as one"
            f" of {spec.num_processes}."
        )
    if not 0 <= number < spec.num_processes:
        return ValueError(
            f"A process was started as number {number} of {spec.num_processes}: the numbers are 0"
            f" to {spec.num_processes - 1}."
        )
    if process.brings != brings:
        return ValueError(
            f"Process {number} brings {process.brings}, and process 0 {brings}: they must be the"
            " same."
        )
    if number == 0 or (number in joined and joined[number].channel.is_open()):
        return ValueError(
            f"Two processes were started as number {number} of {spec.num_processes}: each needs"
            " its own process_id."
        )
    return None


def listen(coordinator: str) -> socket.socket:
    """Listens at the coordinator address, on the interface that its host name resolves to.

    Listens on all interfaces if the name cannot be resolved, if this host does not have the
    resolved address (a router may have it), or if the name resolves to loopback (a host's own name
    does, with Debian's /etc/hosts). If the coordinator is itself `localhost` or a loopback address,
    listens only on loopback.
    """
    port = split_address(coordinator, "coordinator")[1]
    family, address = _interface(coordinator)
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
                f"Process 0 cannot serve at {coordinator}: {error.strerror}. Choose another port,"
                " or end what uses it."
            ) from error
    raise AssertionError("All interfaces are always available.")


def _interface(coordinator: str) -> tuple[socket.AddressFamily, str]:
    """Returns family and address of the interface to listen on; "" for all interfaces."""
    host, port = split_address(coordinator, "coordinator")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return socket.AF_INET, ""
    family, *_, address = sorted(found)[0]  # IPv4 before IPv6.
    if ipaddress.ip_address(address[0]).is_loopback and not is_loopback(coordinator):
        return family, ""
    return family, str(address[0])


def _connect(spec: ProcessSpec, deadline: float, seconds: float) -> Channel:
    """Connects to process 0 and receives its challenge.

    Repeats failed attempts: after a restart of the run, process 0 of the previous start may still
    listen at the address.
    """
    address = split_address(spec.coordinator, "coordinator")
    while True:
        try:
            connection = socket.create_connection(address, timeout=_MESSAGE_SECONDS)
            try:
                channel = Channel(connection, run_secret())
                channel.accept_challenge(min(deadline, time.monotonic() + _MESSAGE_SECONDS))
            except BaseException:
                connection.close()
                raise
            return channel
        except (OSError, ValueError) as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                reason = getattr(error, "strerror", None) or error
                raise MissingProcessError(
                    f"Process {spec.process_id} of {spec.num_processes} waited {seconds:.0f} s"
                    f" for process 0 at {spec.coordinator}: {reason}."
                ) from error
            time.sleep(_RETRY_SECONDS)


def free_port() -> int:
    """Returns an unused port of this host, outside of the ephemeral range.

    Raises:
      OSError: no unused port was found.
    """
    for _ in range(100):
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("No free port was found between 20000 and 32000.")
