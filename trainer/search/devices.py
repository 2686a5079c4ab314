"""Divides the devices of this host among the trials that run at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from t2tp.processes.process_spec import THREADS_VARIABLE


@dataclass(frozen=True)
class Devices:
    """The devices of one trial; by default, all devices of this host."""

    gpus: Sequence[str] = ()
    cores: Sequence[int] = ()

    @classmethod
    def of_each(
        cls, trials: int, each: int | None, gpus: Sequence[str], cores: Sequence[int]
    ) -> list[Devices]:
        """Divides GPUs or, on a host without any, cores among trials.

        `each` is the number of devices of each trial; None: an equal share, or all cores if there
        are more trials than cores.

        Raises:
          ValueError: there are too few devices.
        """
        if trials == 1 and each is None:
            return [cls()]
        devices: Sequence[str | int] = gpus or cores
        what = "GPUs" if gpus else "cores"
        count = each or len(devices) // trials
        if not gpus and each is None and not count:
            return [cls()] * trials
        if not count or count * trials > len(devices):
            raise ValueError(
                f"{trials} trials with {max(1, count)} {what} each need {max(1, count) * trials},"
                f" and there are {len(devices)}: run fewer at once with --parallel_trials, or give"
                " each fewer with --devices_per_trial"
            )
        starts = range(0, count * trials, count)
        if gpus:
            return [cls(gpus=gpus[start : start + count]) for start in starts]
        return [cls(cores=cores[start : start + count]) for start in starts]

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns the environment of a trial's process, based on `base`."""
        variables = dict(base)
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        if self.cores:
            variables.setdefault(THREADS_VARIABLE, str(len(self.cores)))
        return variables
