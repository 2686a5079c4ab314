"""The peer's side of a measurement: its arguments, and its results in one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import SupportsFloat

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gpt import MODELS

WARM_UP = 4
BETWEEN_READS = 5  # training steps: a training loop doesn't read every loss

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--model", choices=MODELS, default="tiny")
PARSER.add_argument("--batch", type=int, default=2)
PARSER.add_argument("--length", type=int, default=64)
PARSER.add_argument("--steps", type=int, default=10)
PARSER.add_argument("--new_tokens", type=int, default=64, help="of a decode")
PARSER.add_argument("--segments", choices=["one", "packed"], default="one")
PARSER.add_argument("--loop", type=int, default=1, help="steps of a launch, t2tp only")
PARSER.add_argument("--waits", action="store_true", help="prints READY, then waits for a line")
_answers = os.fdopen(os.dup(1), "w")


def arguments() -> argparse.Namespace:
    """Parses the command line, and redirects to stderr what libraries print from now on."""
    os.dup2(2, 1)
    return PARSER.parse_args()


def measure(
    step: Callable[[], SupportsFloat],
    steps: int,
    tokens: int,
    peak_bytes: Callable[[], int],
    more: Callable[[], dict[str, object]] = dict,
    between_reads: int = BETWEEN_READS,
    steps_of_call: int = 1,
    **facts: object,
) -> None:
    """Times steps, and prints the results.

    Args:
      step: function that starts a step and returns its loss, or any number if it decodes. Reading
        the number as a float waits for the end of the step.
      steps: number of timed steps, after some steps of warm-up.
      tokens: number of tokens of a step.
      peak_bytes: function that returns the peak of the device's memory.
      more: function that returns further results, called after the timed steps.
      between_reads: number of calls of `step` before a loss is read.
      steps_of_call: number of steps that a call of `step` starts; `tokens` are of one of them.
      **facts: further results, such as versions.
    """
    start = time.perf_counter()
    losses = [float(step())]
    first = time.perf_counter() - start
    losses += [float(step()) for _ in range(WARM_UP - 1)]
    if PARSER.parse_args().waits:
        print("READY", file=_answers, flush=True)
        input()
        float(step())
    seconds = []
    for _ in range(max(1, steps // (between_reads * steps_of_call))):
        start = time.perf_counter()
        for _ in range(between_reads):
            loss = step()
        float(loss)
        seconds.append((time.perf_counter() - start) / (between_reads * steps_of_call))
    results = {
        "losses": losses,
        "first_step": first,
        "seconds": seconds,
        "tokens_per_second": tokens / statistics.median(seconds),
        "peak_bytes": peak_bytes(),
        **facts,
        **more(),
    }
    report(**results)


def report(**results: object) -> None:
    """Prints the results in a JSON line."""
    print(json.dumps(results), file=_answers, flush=True)
