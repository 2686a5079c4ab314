"""A peer's side of a benchmark: waits for its turn, runs its steps, says what they took.

On standard output: one JSON line when the peer has warmed up, and one for each turn. On standard
input: the number of steps of the next turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from language_model import CASES

# What every peer is told.
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--case", choices=CASES, default="design")
PARSER.add_argument("--data", type=int, default=1, help="devices that split the batch")
PARSER.add_argument("--model", type=int, default=1, help="devices that split the weights")
PARSER.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
PARSER.add_argument("--xla", action="store_true")


def arguments() -> argparse.Namespace:
    """The command line."""
    return PARSER.parse_args()


def take_turns(step: Callable[[], float], **facts: object) -> None:
    """Warms up, then runs steps when asked.

    Args:
      step: trains a step, waits for its end, and returns its loss.
      **facts: what else to report, such as versions.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    start = time.perf_counter()
    losses = [step()]
    tracing = time.perf_counter() - start
    losses += [step() for _ in range(3)]
    print(json.dumps({"losses": losses, "first_step": tracing, **facts}), file=answers, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), file=answers, flush=True)
