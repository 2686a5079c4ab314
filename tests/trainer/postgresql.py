"""A PostgreSQL server of the tests' own, where the machine has the program (apt's `postgresql`)."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.patience import PATIENCE

_USER = "postgres"  # The server refuses to run as root; apt's package makes this user.


def missing() -> str:
    """Returns why there can be no server; "" if there can."""
    if importlib.util.find_spec("psycopg") is None:
        return "needs the package psycopg"
    if _programs() is None:
        return "needs a PostgreSQL server, as of `apt-get install postgresql`"
    return ""


@contextlib.contextmanager
def server() -> Iterator[Path]:
    """Runs a server without a network, which forgets everything at the end.

    Yields:
      The directory of its socket.
    """
    programs = _programs()
    assert programs is not None
    # Nobody but root may enter pytest's directories.
    directory = Path(tempfile.mkdtemp(prefix="t2tp-postgres-"))
    user = _USER if os.geteuid() == 0 else None
    try:
        if user:
            shutil.chown(directory, user)
        data = directory / "data"
        make = [programs / "initdb", "--pgdata", data, "--username", _USER, "--auth=trust"]
        subprocess.run([*make, "--no-sync"], user=user, check=True, capture_output=True, cwd="/")
        serve = [programs / "postgres", "-D", data, "-k", directory, "-c", "listen_addresses="]
        with (
            (directory / "log").open("wb") as log,
            subprocess.Popen(
                [*serve, "-c", "fsync=off"], user=user, stdout=log, stderr=log, cwd="/"
            ) as process,
        ):
            try:
                _wait_for(directory)
                yield directory
            finally:
                process.send_signal(signal.SIGQUIT)  # At once.
    finally:
        shutil.rmtree(directory)


def new_database(directory: Path, name: str) -> str:
    """Creates a database and returns its URL."""
    _execute(directory, f'create database "{name}"')
    return f"postgresql://{_USER}@/{name}?host={directory}"


def _programs() -> Path | None:
    """Returns the directory of the latest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=str)
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _wait_for(directory: Path) -> None:
    import psycopg

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _execute(directory, "select 1")
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _execute(directory: Path, command: str) -> None:
    import psycopg

    with psycopg.connect(host=str(directory), user=_USER, autocommit=True) as connection:
        connection.execute(command)
