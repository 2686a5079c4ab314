"""Opens the study of a search in a relational database."""

import math
import random
import time
import urllib.parse
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from sqlalchemy.exc import DBAPIError

from t2tp.best_metric import BestMetric
from t2tp.object_store.store import without_secrets
from t2tp.trainer.errors import UsageError
from t2tp.trainer.search.ledger import retry

_ABOUT = "search"
_SQLITE_TIMEOUT = 60.0  # Seconds to wait for other processes that write into the file.
_RETRY_SECONDS = (1.0, 2.0, 4.0, None)


def sqlite_address(path: Path) -> str:
    """Returns the address of a study in a file."""
    # Absolute, because the trials may run in other directories.
    return f"sqlite:///file:{urllib.parse.quote(str(path.absolute()))}?uri=true"


def open_study(
    address: str,
    name: str,
    hparams_range: str,
    objectives: Sequence[BestMetric],
    lost_after_seconds: float,
) -> optuna.Study:
    """Opens a study; creates it if needed.

    A trial without a heartbeat for `lost_after_seconds` is lost.

    Raises:
      UsageError: the study cannot be opened, or belongs to a search with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    # Optuna warns that only `Study.optimize` records heartbeats, but `Ledger` records them too.
    warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used with")
    directions = [
        StudyDirection.MINIMIZE if each.is_min else StudyDirection.MAXIMIZE for each in objectives
    ]
    about = f"{hparams_range} by {', '.join(each.metric for each in objectives)}"
    # The errors of SQLAlchemy, of its drivers and of Optuna have no common base class.
    try:
        study = _create_study(address, name, directions, lost_after_seconds)
        before = study.user_attrs.get(_ABOUT)
        if before is None:
            study.set_user_attr(_ABOUT, about)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"--study={without_secrets(address)} cannot be opened:"
            f" {without_secrets(reason.replace(address, without_secrets(address)))}"
        ) from None
    if before not in (None, about) or study.directions != directions:
        raise UsageError(
            f"the study {name} in {without_secrets(address)} searches {before}, in its directions:"
            " give the same --hparams_range, --metric and --minimize, or another --study_name"
        )
    return study


def _create_study(
    address: str, name: str, directions: Sequence[StudyDirection], lost_after_seconds: float
) -> optuna.Study:
    """Opens or creates a study; retries if another process creates the tables at that moment."""
    is_sqlite = address.startswith("sqlite")
    for seconds in _RETRY_SECONDS:
        try:
            storage = RDBStorage(
                address,
                engine_kwargs={"connect_args": {"timeout": _SQLITE_TIMEOUT}} if is_sqlite else None,
                heartbeat_interval=max(1, int(lost_after_seconds / 4)),
                grace_period=math.ceil(lost_after_seconds),
                heartbeat_stale_trial_callback=retry,
            )
            return optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        except DBAPIError:  # Another process has just created the same tables.
            if seconds is None:
                raise
            time.sleep(seconds * random.random())
    raise AssertionError
