"""Which expert reads which token: the routers of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.ops.top_k import top_k

GATINGS = ("top_1", "top_2", "expert_choice")


@dataclass(frozen=True)
class Router:
    """What the router says of tokens in groups.

    Attributes:
      logits: float32 [groups, group, router_experts].
      is_real: float32 [groups, group]: 0 for padding.
      experts: the dimension router_experts.
    """

    logits: mtf.Tensor
    is_real: mtf.Tensor
    experts: mtf.Dimension

    @property
    def tokens(self) -> mtf.Dimension:
        """The dimension of the tokens of a group."""
        return self.is_real.shape.dims[-1]

    def probabilities(self) -> mtf.Tensor:
        """[groups, group, router_experts], zeros for padding."""
        return mtf.softmax(self.logits, self.experts) * self.is_real

    def z_sum(self) -> mtf.Tensor:
        """The sum over the tokens of log(Z)**2, where Z is the sum of exponentials (B. Zoph et al.,
        ST-MoE, arXiv:2202.08906, section 3.1)."""
        log_z = mtf.reduce_logsumexp(self.logits, self.experts)
        return mtf.reduce_sum(mtf.square(log_z) * self.is_real)


@dataclass(frozen=True)
class Choice:
    """The expert that each token goes to, or one of them.

    Attributes:
      slots: int32 [groups, group], the number of its place in [experts * capacity]; beyond that if
        it has none.
      gate: float32 [groups, group], what the expert's output is multiplied by; 0 if it has none.
      is_dropped: float32 [groups, group], 1 where a real token found its expert full.
    """

    slots: mtf.Tensor
    gate: mtf.Tensor
    is_dropped: mtf.Tensor


def token_choices(router: Router, k: int, capacity: int) -> tuple[list[Choice], mtf.Tensor]:
    """Each token goes to its k most probable experts, as far as they have room.

    k of 1: W. Fedus et al., "Switch Transformers" (arXiv:2101.03961), section 2.1; the gate is the
    probability. k of 2: D. Lepikhin et al., "GShard" (arXiv:2006.16668), section 2.2; the gates are
    the two probabilities, scaled to a sum of 1, and all first choices come before all second ones.
    (There a second choice of small weight may be left out at random; here it never is.)

    Args:
      router: says how probable experts are.
      k: how many experts a token has.
      capacity: places of an expert in a group.

    Returns:
      the choices, and the load-balancing loss, a sum over the tokens of what it is in their group:
      experts * sum_e f_e * P_e (Switch, equation 4), where f_e is the part of a group's tokens that
      have e as their first choice, and P_e the mean of its probabilities.
    """
    experts, tokens = router.experts, router.tokens
    probabilities = router.probabilities()
    left = mtf.stop_gradient(probabilities)
    picks, gates = [], []
    for _ in range(k):
        pick = mtf.argmax(left, experts)
        chosen = mtf.one_hot(pick, experts, dtype=tf.float32)
        left = left * (1.0 - chosen) - chosen
        picks.append((pick, chosen * router.is_real))
        gates.append(mtf.reduce_sum(probabilities * chosen, reduced_dim=experts))
    if k > 1:
        total = mtf.maximum(sum(gates[1:], gates[0]), 1e-9)
        gates = [gate / total for gate in gates]
    choices = []
    taken = None
    for (pick, chosen), gate in zip(picks, gates, strict=True):
        before = mtf.cumsum(chosen, tokens, exclusive=True)
        if taken is not None:
            before += taken
        place = mtf.reduce_sum(before * chosen, reduced_dim=experts)
        counts = mtf.reduce_sum(chosen, reduced_dim=tokens)
        taken = counts if taken is None else taken + counts
        has_room = _float(mtf.less(place, float(capacity))) * router.is_real
        slot = pick * capacity + mtf.cast(place, tf.int32)
        nowhere = mtf.zeros_like(slot) + experts.size * capacity
        slots = mtf.where(mtf.greater(has_room, 0.0), slot, nowhere)
        choices.append(Choice(slots, gate * has_room, router.is_real - has_room))
    return choices, _load_balance(router, probabilities, picks[0][1])


def _load_balance(router: Router, probabilities: mtf.Tensor, first: mtf.Tensor) -> mtf.Tensor:
    count = mtf.maximum(mtf.reduce_sum(router.is_real, reduced_dim=router.tokens), 1.0)
    share = mtf.reduce_sum(first, reduced_dim=router.tokens) / count
    total = mtf.reduce_sum(probabilities, reduced_dim=router.tokens)
    return mtf.reduce_sum(share * total) * router.experts.size


def expert_choices(router: Router, capacity: mtf.Dimension) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Each expert takes the tokens of a group that it is most probable for.

    Y. Zhou et al., "Mixture-of-Experts with Expert Choice Routing" (arXiv:2202.09368), section 3.
    A token may have any number of experts, and none; the choice looks at the whole group, so a
    model that predicts the next symbol must not use it.

    Args:
      router: says how probable experts are.
      capacity: the dimension of the places of an expert in a group, at most as many as tokens.

    Returns:
      tokens, int32, and gates, float32: [groups, router_experts, capacity]. The gate is the
      probability, 0 for padding.
    """
    gates, tokens = top_k(router.probabilities(), router.tokens, capacity)
    return tokens, gates


def _float(condition: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(condition, tf.float32)
