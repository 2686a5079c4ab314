"""A peer's side of a measurement: its arguments, and its answer in one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gpt import MODELS

WARM_UP = 4

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--model", choices=MODELS, default="tiny")
PARSER.add_argument("--batch", type=int, default=2)
PARSER.add_argument("--length", type=int, default=64)
PARSER.add_argument("--steps", type=int, default=10)
PARSER.add_argument("--new_tokens", type=int, default=64, help="of a decode")
PARSER.add_argument("--waits", action="store_true", help="prints READY, then waits for a line")
_answers = os.fdopen(os.dup(1), "w")


def arguments() -> argparse.Namespace:
    """The command line. From here on, what libraries print is no answer."""
    os.dup2(2, 1)
    return PARSER.parse_args()


def measure(
    step: Callable[[], float],
    steps: int,
    tokens: int,
    peak_bytes: Callable[[], int],
    more: Callable[[], dict[str, object]] = dict,
    **facts: object,
) -> None:
    """Times steps, and prints the results.

    Args:
      step: does a step, waits for its end, and returns its loss (of decoding: any number).
      steps: how many are timed, after a few that are not.
      tokens: number of tokens of a step.
      peak_bytes: the device's memory, at its fullest.
      more: returns further results, after the timed steps.
      **facts: what else to report, such as versions.
    """
    start = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - start
    losses += [step() for _ in range(WARM_UP - 1)]
    if PARSER.parse_args().waits:
        print("READY", file=_answers, flush=True)
        input()
        step()
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    results = {
        "losses": losses,
        "first_step": first,
        "seconds": seconds,
        "tokens_per_second": tokens / statistics.median(seconds),
        "peak_bytes": peak_bytes(),
        **facts,
        **more(),
    }
    print(json.dumps(results), file=_answers, flush=True)
