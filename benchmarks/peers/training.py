"""The peer's side of the case `learning`: searches for its learning rate, then trains with it.

All seconds are processor seconds of the process, which computes in one thread. The seconds of a
step are the lowest decile of all steps, because other programs can only slow steps down (caches,
memory). The number of steps is the budget divided by the seconds of a step, so the budget does not
include evaluation, tracing and compiling.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable

import turn

turn.PARSER.add_argument("--data_dir", required=True, help="tokens of the standard library")
turn.PARSER.add_argument("--optimizer", choices=("adam", "muon"), required=True)
turn.PARSER.add_argument("--first_rate", type=float, default=1e-3, help="the first to try")
turn.PARSER.add_argument("--rate", type=float, help="train with this rate, without a search")
turn.PARSER.add_argument("--seconds", type=float, default=1.0, help="the budget")

# Fraction of the budget that each run of the search has.
SEARCH = 0.25
EVALUATIONS = 6
WARM_UP = 0.1
# Number of batches to evaluate, from the beginning of the validation text.
EVALUATED = 16
FIRST_STEPS = 12


def lowest_decile(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


def linear(done: float) -> float:
    """Returns the factor of the rate, which falls to 0 in the last 40 % of the steps."""
    return min(1.0, (1 - done) / 0.4)


def cosine(done: float) -> float:
    """Returns the factor of the rate, which falls to a tenth along half a cosine."""
    return 0.55 + 0.45 * math.cos(math.pi * done)


def learn(
    reset: Callable[[], None],
    step: Callable[[int, float], None],
    evaluate: Callable[[], float],
    decay: Callable[[float], float],
    version: str,
    shares: tuple[float, ...] = (1.0,),
) -> None:
    """Searches for the best rate, trains with it, and reports all runs.

    Args:
      reset: function that sets weights and optimizer to their initial values.
      step: function that runs a step, given its number and its learning rate.
      evaluate: function that returns the total nats of `EVALUATED` batches of validation text.
      decay: function that returns the factor of the rate after a fraction of the steps that follow
        the warm-up.
      version: version of the framework.
      shares: fractions of the budget; one run with the best rate is trained for each fraction.
    """
    args = turn.PARSER.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to stdout, too.
    seconds: list[float] = []
    runs: list[dict] = []

    def timed_step(number: int, rate: float) -> None:
        start = time.process_time()
        step(number, rate)
        seconds.append(time.process_time() - start)

    def train(rate: float, share: float, evaluations: int = 1) -> float:
        steps = round(share * args.seconds / lowest_decile(seconds))
        rising = max(1, round(WARM_UP * steps))
        at = {steps * (n + 1) // evaluations for n in range(evaluations)}
        curve = []
        reset()
        for number in range(steps):
            rises = min(1.0, (number + 1) / rising)
            done = max(0, number - rising) / max(1, steps - rising)
            timed_step(number, rate * rises * decay(done))
            if number + 1 in at:
                curve.append((number + 1, evaluate()))
        runs.append({"rate": rate, "share": share, "curve": curve})
        print(runs[-1], flush=True)
        return curve[-1][1]

    began = _with_children()
    step(0, 0.0)
    first_step = _with_children() - began
    for number in range(FIRST_STEPS):
        timed_step(number, 0.0)
    best, rate = args.rate, args.first_rate
    tried: dict[float, float] = {}
    while best is None:
        for each in (rate, rate * 2, rate / 2):
            if each not in tried:
                tried[each] = train(each, SEARCH)
        lowest = min(tried, key=lambda each: tried[each])
        best, rate = (lowest if lowest == rate else None), lowest
    for share in shares:
        train(best, share, EVALUATIONS if share == 1.0 else 1)
    answer = {"runs": runs, "first_step": first_step, "version": version}
    answer |= {"step": lowest_decile(seconds), "median_step": statistics.median(seconds)}
    print(turn.json.dumps(answer), file=answers, flush=True)


def _with_children() -> float:
    """Returns the processor seconds of this process and of the compilers that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
