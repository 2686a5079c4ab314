"""The communication that overlaps with computation.

Collectives of weights and gradients overlap with the computation of other layers. In the backward
pass, collectives of activations overlap with the gradients of the same layer's weights. In the
forward pass, they overlap tile by tile with the next matmul. A software stack limits the share of
collectives that overlap (`overlap`, `overlap_activations`, `overlap_forward`). The time of the
simultaneous computation is another limit. For example, with overlap = 0.9:

    gradients 4 s, backward pass 10 s                   3.6 s hidden, 0.4 s exposed
    gradients 4 s, backward pass  3 s                   3.0 s hidden, 1.0 s exposed
    gradients 4 s, once after 10 microbatches of 1 s    1.0 s hidden, 3.0 s exposed
"""

from collections import defaultdict
from collections.abc import Mapping

from t2tp.planner.cluster_file import SoftwareStack
from t2tp.step.work import BACKWARD, FORWARD, PRODUCT, SEND, Traffic, Work

# The fraction of each pass's matmuls with which collectives of activations can overlap: in the
# backward pass the matmuls that compute gradients of weights, in the forward pass all matmuls.
_PRODUCTS = {BACKWARD: 0.5, FORWARD: 1.0}


def hidden_seconds(
    traffic: Mapping[Traffic, float], work: Mapping[Work, float], stack: SoftwareStack
) -> dict[Traffic, float]:
    """Returns the hidden seconds of each collective.

    `traffic` and `work` have the seconds of all executions of each collective and operation.
    """
    passes = max((w.times for w in work), default=1)
    compute: defaultdict[tuple[str, bool], float] = defaultdict(float)
    for w, seconds in work.items():
        compute[w.phase, True] += seconds
        if w.kind == PRODUCT:
            compute[w.phase, False] += _PRODUCTS.get(w.phase, 0.0) * seconds
    groups: defaultdict[tuple[str, bool, int], dict[Traffic, float]] = defaultdict(dict)
    for t, seconds in traffic.items():
        share = _share(t, stack)
        if share:
            phase = FORWARD if t.phase == FORWARD else BACKWARD
            groups[phase, t.of_state, min(t.times, passes)][t] = share * seconds
    hidden: dict[Traffic, float] = {}
    for (phase, of_state, times), wanted in groups.items():
        # A collective that runs once, after all microbatches, overlaps only with the last
        # microbatch.
        most = compute[phase, of_state] * times / passes
        scale = min(1.0, most / (sum(wanted.values()) or 1.0))
        hidden |= {t: scale * seconds for t, seconds in wanted.items()}
    return hidden


def _share(traffic: Traffic, stack: SoftwareStack) -> float:
    """Returns the max share of a collective that overlaps with computation in this stack."""
    if traffic.part == SEND:  # Waiting for messages is part of the schedule's time.
        return 0.0
    if traffic.of_state:
        return stack.overlap
    if traffic.phase == FORWARD or traffic.is_recomputed:
        return stack.overlap_forward
    if stack.gathers_again and traffic.kind == "allgather":
        # Half of these gathers repeat gathers of the forward pass, and overlap as others do in the
        # backward pass. A matmul waits for the other half, as in the forward pass.
        return (stack.overlap_activations + stack.overlap_forward) / 2
    return stack.overlap_activations
