"""Routers of a mixture of experts: the assignment of tokens to experts."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from t2tp import mtf
from t2tp.ops.top_k import top_k


@dataclass(frozen=True)
class Router:
    """The router's logits for grouped tokens.

    Attributes:
      logits: float32 [groups, group, router_experts].
      token_mask: float32 [groups, group]: 0 for padding.
      experts: the dimension router_experts.
    """

    logits: mtf.Tensor
    token_mask: mtf.Tensor
    experts: mtf.Dimension

    @property
    def tokens(self) -> mtf.Dimension:
        """The token dimension of a group."""
        return self.token_mask.shape.dims[-1]

    def probabilities(self) -> mtf.Tensor:
        """Returns [groups, group, router_experts], zero for padding."""
        return mtf.softmax(self.logits, self.experts) * self.token_mask

    def z_sum(self) -> mtf.Tensor:
        """Returns the z-loss summed over tokens: log(Z)**2, where Z is the sum of exponentials.

        B. Zoph et al., ST-MoE (arXiv:2202.08906), section 3.1.
        """
        log_z = mtf.reduce_logsumexp(self.logits, self.experts)
        return mtf.reduce_sum(mtf.square(log_z) * self.token_mask)


@dataclass(frozen=True)
class ExpertAssignment:
    """One expert per token.

    Attributes:
      slots: int32 [groups, group], the token's index into [experts * capacity]; out of range if it
        is dropped.
      gate: float32 [groups, group], the factor of the expert's output; 0 if dropped.
      is_dropped: float32 [groups, group], 1 for a real token whose expert is full.
    """

    slots: mtf.Tensor
    gate: mtf.Tensor
    is_dropped: mtf.Tensor


def token_choices(
    router: Router, k: int, capacity: int
) -> tuple[list[ExpertAssignment], mtf.Tensor]:
    """Assigns each token to its k most probable experts, up to their capacity.

    k of 1: W. Fedus et al., "Switch Transformers" (arXiv:2101.03961), section 2.1; the gate is the
    probability. k of 2: D. Lepikhin et al., "GShard" (arXiv:2006.16668), section 2.2; the gates are
    the two probabilities, normalized to a sum of 1, and first choices take precedence over second
    ones. (GShard drops second choices of small weight at random; this does not.)

    Args:
      router: the tokens' router.
      k: experts per token.
      capacity: slots of an expert in a group.

    Returns:
      the assignments, and the load-balancing loss summed over tokens, each with the loss of its
      group: experts * sum_e f_e * P_e (Switch, equation 4), where f_e is the fraction of the
      group's tokens whose first choice is e, and P_e their mean probability of e.
    """
    experts, tokens = router.experts, router.tokens
    probabilities = router.probabilities()
    remaining = mtf.stop_gradient(probabilities)
    picks, gates = [], []
    for _ in range(k):
        pick = mtf.argmax(remaining, experts)
        chosen = mtf.one_hot(pick, experts, dtype=tf.float32)
        # Chosen experts become -1, below all probabilities, so that the next argmax skips them.
        remaining = remaining * (1.0 - chosen) - chosen
        picks.append((pick, chosen * router.token_mask))
        gates.append(mtf.reduce_sum(probabilities * chosen, reduced_dim=experts))
    if k > 1:
        total = mtf.maximum(sum(gates[1:], gates[0]), 1e-9)
        gates = [gate / total for gate in gates]
    choices = []
    taken = None
    for (pick, chosen), gate in zip(picks, gates, strict=True):
        # A token's position at its expert: how many earlier tokens chose it too.
        before = mtf.cumsum(chosen, tokens, exclusive=True)
        if taken is not None:
            before += taken
        position = mtf.reduce_sum(before * chosen, reduced_dim=experts)
        counts = mtf.reduce_sum(chosen, reduced_dim=tokens)
        taken = counts if taken is None else taken + counts
        has_room = _float(mtf.less(position, float(capacity))) * router.token_mask
        slot = pick * capacity + mtf.cast(position, tf.int32)
        nowhere = mtf.zeros_like(slot) + experts.size * capacity
        slots = mtf.where(mtf.greater(has_room, 0.0), slot, nowhere)
        choices.append(ExpertAssignment(slots, gate * has_room, router.token_mask - has_room))
    return choices, _load_balance(router, probabilities, picks[0][1])


def _load_balance(router: Router, probabilities: mtf.Tensor, first: mtf.Tensor) -> mtf.Tensor:
    count = mtf.maximum(mtf.reduce_sum(router.token_mask, reduced_dim=router.tokens), 1.0)
    share = mtf.reduce_sum(first, reduced_dim=router.tokens) / count
    total = mtf.reduce_sum(probabilities, reduced_dim=router.tokens)
    return mtf.reduce_sum(share * total) * router.experts.size


def expert_choices(router: Router, capacity: mtf.Dimension) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Assigns to each expert the tokens of a group that are most probable for it.

    Y. Zhou et al., "Mixture-of-Experts with Expert Choice Routing" (arXiv:2202.09368), section 3.
    A token may have any number of experts, or none. The assignment depends on the whole group, so
    autoregressive models must not use it.

    Args:
      router: the tokens' router.
      capacity: the dimension of an expert's tokens in a group, at most the size of a group.

    Returns:
      token indices, int32, and gates, float32: [groups, router_experts, capacity]. The gate is the
      probability, 0 for padding.
    """
    gates, tokens = top_k(router.probabilities(), router.tokens, capacity)
    return tokens, gates


def _float(condition: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(condition, tf.float32)
