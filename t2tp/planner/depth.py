"""Lowers few layers of each kind and extrapolates to all, so that deep models plan fast.

A model of 48 equal layers is lowered with 2 layers and with 1 layer. The cost of 48 layers is the
cost of 2, plus 46 times the difference.
"""

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from t2tp.hparam import HParams

# The hparams that count the layers of encoder and decoder, or of both.
_DEPTHS = ("num_encoder_layers", "num_decoder_layers")
_BOTH = "num_hidden_layers"


_Step = TypeVar("_Step", bound="Extensible")


class Extensible(Protocol):
    """A lowered step of few layers."""

    def extended(self: _Step, longer: _Step, shorter: _Step, times: int) -> _Step:
        """Returns the step with more layers: adds the difference of two steps `times` times."""


def lower_by_layers(lower: Callable[[HParams], _Step], hparams: HParams) -> _Step:
    """Lowers a step (with `lower`) with few layers of each kind, and extrapolates."""
    counts = depths(hparams)
    # The smallest numbers of layers to extrapolate from: two periods, and the layers that do not
    # fill a period. The shorter step has one period less.
    each = period(hparams)
    few = {name: min(count, 2 * each + count % each) for name, count in counts.items()}
    if all(few[name] == count for name, count in counts.items()):
        return lower(hparams)
    together = len(set(counts.values())) == 1
    groups = [tuple(counts)] if together else [(name,) for name in counts]
    longer = lower(hparams.with_values(few))
    step = longer
    for group in groups:
        extra = (counts[group[0]] - few[group[0]]) // each
        if extra:
            shorter = {name: few[name] - each for name in group}
            step = step.extended(longer, lower(hparams.with_values({**few, **shorter})), extra)
    return step


def depths(hparams: HParams) -> dict[str, int]:
    """Returns the number of layers of each stack, by the hparam that counts them."""
    if all(name in hparams for name in _DEPTHS):
        return {name: hparams.get(name) or hparams.get(_BOTH) for name in _DEPTHS}
    return {_BOTH: hparams.get(_BOTH)} if _BOTH in hparams else {}


def period(hparams: HParams) -> int:
    """Returns the period with which the kinds of layers repeat."""
    of_experts = hparams.get("moe_every") if "moe_every" in hparams else 1
    pattern = hparams.get("layer_pattern") if "layer_pattern" in hparams else []
    return math.lcm(of_experts, max(len(pattern), 1))
