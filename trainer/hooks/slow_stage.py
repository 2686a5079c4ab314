"""Names the pipeline stage for which the other stages wait."""

from collections.abc import Mapping

from absl import logging

from t2tp.trainer.hooks.json_log import JsonLog

# A stage is slow if its compute time is this many times the other stages' average.
_TOLERANCE = 1.2
# A report measures one step, which other programs may disturb. So the median of this many reports
# is compared.
_REPORTS = 3

_IDLE = "pipeline_idle_share_stage_"


class SlowStage:
    """Warns once about each stage that computes much longer than the other stages."""

    def __init__(self, log: JsonLog) -> None:
        """Creates the check; `log` records its warnings as `slow_stage`."""
        self._log = log
        self._busy: dict[int, list[float]] = {}
        self._named: set[int] = set()

    def report(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the idle shares of a step, and warns if a stage is slow.

        The scalars are `pipeline_idle_share_stage_0` and so on: each stage's measured idle time, as
        a fraction of the step.
        """
        for name, idle in scalars.items():
            if name.startswith(_IDLE):
                self._busy.setdefault(int(name.removeprefix(_IDLE)), []).append(1 - idle)
        recent = {stage: sorted(busy[-_REPORTS:]) for stage, busy in self._busy.items()}
        if len(recent) < 2 or min(map(len, recent.values())) < _REPORTS:
            return
        busy = {stage: shares[_REPORTS // 2] for stage, shares in recent.items()}
        slowest = max(busy, key=busy.__getitem__)
        others = [share for stage, share in busy.items() if stage != slowest]
        ratio = busy[slowest] * len(others) / max(sum(others), 1e-9)
        if ratio < _TOLERANCE or slowest in self._named:
            return
        self._named.add(slowest)
        logging.warning(
            f"Stage {slowest} of {len(busy)} computes {ratio:.2f} times as long as the others on"
            " average, which wait for it: give it fewer layers (pipeline_layers), or look at its"
            " device."
        )
        self._log.write("slow_stage", step, {"stage": slowest, "ratio": ratio})
