"""Programs that synchronize with their object store very often, so that tests need not wait."""

from t2tp.object_store import mirror, store_lock
from t2tp.trainer.cli import programs


def train() -> int:
    """Runs `t2tp_trainer`."""
    mirror.PERIOD_SECONDS = store_lock.BEAT_SECONDS = 0.05
    store_lock.ABANDONED_SECONDS = 3.0
    return programs.t2tp_trainer()
