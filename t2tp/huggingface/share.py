"""The share of one process in a conversion by several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Share:
    """The share of this process; by default all of it.

    Attributes:
      process_id: the number of this process.
      num_processes: how many processes convert together, on a shared file system.
      barrier: called with a name; returns when all processes have called it with that name.
    """

    process_id: int = 0
    num_processes: int = 1
    barrier: Callable[[str], None] = lambda name: None

    @property
    def is_main_process(self) -> bool:
        """Whether this process makes directories, and files that are not of tensors."""
        return self.process_id == 0

    def of(self, items: Sequence[_T]) -> Sequence[_T]:
        """Returns the items of this process: every `num_processes`-th."""
        return items[self.process_id :: self.num_processes]


ALL = Share()
