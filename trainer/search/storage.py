"""Where a study is kept: a journal file, or a relational database."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from optuna.study import StudyDirection
from sqlalchemy.exc import DBAPIError

from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.objectives import Objective

JOURNAL = "journal:"
_ABOUT = "search"

_RETRY_SECONDS = (1.0, 2.0, 4.0)


def open_study(
    address: str, name: str, hparams_range: str, objectives: Sequence[Objective]
) -> optuna.Study:
    """Opens a study, which is created if needed.

    Args:
      address: `journal:FILE` or the URL of a database.
      name: of the study.
      hparams_range: name of the ranged set.
      objectives: what trials are compared by.

    Raises:
      UsageError: the study cannot be opened, or is about something else.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions = [
        StudyDirection.MINIMIZE if each.minimize else StudyDirection.MAXIMIZE for each in objectives
    ]
    about = f"{hparams_range} by {', '.join(each.metric for each in objectives)}"
    # SQLAlchemy's errors, those of its drivers and Optuna's have no common base class.
    try:
        study = _create_study(address, name, directions)
        before = study.user_attrs.get(_ABOUT)
        if before is None:
            study.set_user_attr(_ABOUT, about)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"--study={address} cannot be opened: {reason}") from error
    if before not in (None, about) or study.directions != directions:
        raise UsageError(
            f"the study {name} in {address} searches {before}, in its directions: give the same"
            " --hparams_range, --metric and --minimize, or another --study_name"
        )
    return study


def _create_study(address: str, name: str, directions: Sequence[StudyDirection]) -> optuna.Study:
    """Opens or creates a study; several processes may do so at once, in an empty database too."""
    for seconds in _RETRY_SECONDS:
        try:
            return optuna.create_study(
                storage=_storage(address),
                study_name=name,
                directions=directions,
                load_if_exists=True,
            )
        except DBAPIError:  # Another process has just created the same tables.
            time.sleep(seconds * random.random())
    return optuna.create_study(
        storage=_storage(address), study_name=name, directions=directions, load_if_exists=True
    )


def _storage(address: str) -> optuna.storages.BaseStorage | str:
    if not address.startswith(JOURNAL):
        return address
    # Absolute, because the trials may run in other directories.
    path = Path(address.removeprefix(JOURNAL)).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path), _KernelLock(path)))


class _KernelLock(JournalFileOpenLock):
    """A lock of the journal that the kernel releases when its holder dies, however it does.

    Optuna's own locks are files that a killed holder leaves behind, for half a minute. A holder
    killed in the middle of a write also leaves half a line, which the next holder removes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._journal = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Waits for the lock and acquires it."""
        self._descriptor = os.open(f"{self._journal}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        _remove_half_a_line(self._journal)
        return True

    def release(self) -> None:
        """Releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _remove_half_a_line(path: Path) -> None:
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        if not end:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
