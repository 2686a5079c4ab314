"""`StoreLock`: a lock on a run, as an object in the store that the trainer renews."""

import json
import threading
import time
from typing import Any

from absl import logging

from t2tp.object_store.store import Store, StoreError
from t2tp.typed_files import parse_json

# Seconds between two renewals of a lock, and seconds without a renewal after which a lock counts as
# abandoned.
BEAT_SECONDS, ABANDONED_SECONDS = 10.0, 60.0


class StoreLock:
    """A lock on a run in a store.

    The lock is an object that is created only if the store has none. A thread renews it. A trainer
    that was killed no longer renews its lock, so another trainer takes the lock over after
    `ABANDONED_SECONDS`. A trainer in the same local directory takes it over at once, because the
    directory's own lock proves that the first trainer is dead. Clocks of different hosts are not
    compared.

    Attributes:
      is_lost: whether another trainer has taken the lock over.
    """

    def __init__(self, store: Store, name: str, note: dict[str, Any], place: str) -> None:
        """Sets the lock's fields; sends no request.

        `note` describes this process; its field `word` is unique to the process. `place` is the id
        of the mirror in which the trainer works.
        """
        self._store, self._name = store, name
        self._note = {**note, "place": place}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="store lock", daemon=True)
        self.is_lost = False

    def acquire(self) -> dict[str, Any] | None:
        """Acquires the lock and returns None; or returns the note of another trainer that has it.

        Raises:
          StoreError: the store rejects a request or does not answer.
        """
        deadline, seen = time.monotonic() + ABANDONED_SECONDS, None
        has_taken_over = False
        while True:
            if self._store.write(self._name, self._content(0), only_new=True):
                if not has_taken_over:
                    break
                time.sleep(BEAT_SECONDS / 4)  # Another trainer may take over at the same moment.
                if self._is_mine():
                    break
            other = self._read()
            is_ours = other.get("place") == self._note["place"]
            if is_ours or (other == seen and time.monotonic() > deadline):
                if self._read() == other:
                    self._store.delete(self._name)
                has_taken_over = not is_ours
            elif seen not in (None, {}, other):
                return other
            else:
                if seen is None:
                    logging.info(
                        "another trainer has locked %s: waiting up to %d s to see if it is alive",
                        *(self._store.address, ABANDONED_SECONDS),
                    )
                if other != seen:
                    deadline = time.monotonic() + ABANDONED_SECONDS
                seen = other
                time.sleep(BEAT_SECONDS / 4)
        self._thread.start()
        return None

    def is_held(self) -> bool:
        """Asks the store whether this trainer still has the lock; sets `is_lost`."""
        self.is_lost = self.is_lost or not self._is_mine()
        return not self.is_lost

    def release(self) -> None:
        """Deletes the lock if it is this trainer's."""
        self._ended.set()
        self._thread.join()
        try:
            if self._is_mine():
                self._store.delete(self._name)
        except StoreError as error:
            logging.warning("%s", error)

    def _renew(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if not self.is_held():
                    return
                beat += 1
                self._store.write(self._name, self._content(beat))
            except StoreError as error:
                logging.warning("the lock of the run cannot be renewed: %s", error)

    def _is_mine(self) -> bool:
        return self._read().get("word") == self._note["word"]

    def _content(self, beat: int) -> bytes:
        return json.dumps({**self._note, "beat": beat}).encode()

    def _read(self) -> dict[str, Any]:
        """Returns the note in the lock's object; empty if the object is missing or damaged."""
        try:
            return parse_json(self._store.read(self._name), self._name, dict[str, Any])
        except (FileNotFoundError, ValueError):
            return {}
