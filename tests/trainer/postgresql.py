"""Runs a PostgreSQL server for tests, if the machine has the program (apt's `postgresql`)."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    """Runs a server without network access, and deletes its data at the end.

    Yields:
      The directory of its socket.
    """
    # Only root may enter pytest's directories if it runs the tests; the server has another user.
    directory = Path(tempfile.mkdtemp(prefix="t2tp-postgres-"))
    data, log = f"--pgdata={directory / 'data'}", f"--log={directory / 'log'}"
    options = f"--options=-k {directory} -c listen_addresses= -c fsync=off"
    try:
        if os.geteuid() == 0:
            shutil.chown(directory, _USER)
        _run("initdb", data, f"--username={_USER}", "--auth=trust", "--no-sync")
        _run("pg_ctl", "start", "--wait", "--timeout=600", data, log, options)
        try:
            yield directory
        finally:
            _run("pg_ctl", "stop", "--mode=immediate", data)
    finally:
        shutil.rmtree(directory)


def new_database(directory: Path, name: str) -> str:
    """Creates a database and returns its URL."""
    _run("createdb", f"--host={directory}", f"--username={_USER}", name)
    return f"postgresql://{_USER}@/{name}?host={directory}"


def _programs() -> Path | None:
    """Returns the directory of the latest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=str)
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _run(program: str, *arguments: str) -> None:
    user = _USER if os.geteuid() == 0 else None
    command = [_programs() / program, *arguments]
    subprocess.run(command, user=user, check=True, capture_output=True, cwd="/")
