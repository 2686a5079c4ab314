"""Routers of a mixture of experts: they assign tokens to experts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from t2tp import mtf
from t2tp.ops.top_k import top_k

# Larger than the difference between any two experts' scores, `balance` included.
_BELOW_ALL = 1e6


@dataclass(frozen=True)
class Router:
    """The router's logits for grouped tokens.

    Attributes:
      logits: float32 [groups, group, router_experts].
      token_mask: float32 [groups, group]: 0 for padding.
      experts: the dimension router_experts.
      scores: `softmax`, or `sigmoid` of each logit.
      balance: float32 [router_experts], added to the scores when experts are chosen, but not to the
        gates (L. Wang et al., arXiv:2408.15664, section 3). None: nothing is added.
      groups: number of groups of consecutive experts. (In shapes, `groups` are groups of tokens.)
      top_groups: number of groups from which a token chooses experts; see `token_choices`.
    """

    logits: mtf.Tensor
    token_mask: mtf.Tensor
    experts: mtf.Dimension
    scores: str = "softmax"
    balance: mtf.Tensor | None = None
    groups: int = 1
    top_groups: int = 1

    @property
    def tokens(self) -> mtf.Dimension:
        """The token dimension of a group."""
        return self.token_mask.shape.dims[-1]

    def row_sums(self, x: mtf.Tensor) -> mtf.Tensor:
        """Sums over all dimensions except the first."""
        return mtf.reduce_sum(x, output_shape=mtf.Shape(self.token_mask.shape.dims[:1]))

    def probabilities(self) -> mtf.Tensor:
        """Returns the scores [groups, group, router_experts], 0 for padding."""
        if self.scores == "sigmoid":
            return mtf.sigmoid(self.logits) * self.token_mask
        return mtf.softmax(self.logits, self.experts) * self.token_mask

    def z_sum(self) -> mtf.Tensor:
        """Returns the sum of z-losses of each row's tokens.

        A token's z-loss is log(Z)**2, where Z is the sum of the exponentials of its logits
        (B. Zoph et al., ST-MoE, arXiv:2202.08906, section 3.1).
        """
        log_z = mtf.reduce_logsumexp(self.logits, self.experts)
        return self.row_sums(mtf.square(log_z) * self.token_mask)


@dataclass(frozen=True)
class TokenChoice:
    """One chosen expert for each token: all first choices, or all second choices, and so on.

    Attributes:
      expert: int32 [groups, group].
      chosen: float32 [groups, group, router_experts], one-hot; zero for padding.
      gate: float32 [groups, group], the factor of the expert's output.
    """

    expert: mtf.Tensor
    chosen: mtf.Tensor
    gate: mtf.Tensor


@dataclass(frozen=True)
class ExpertAssignment:
    """A `TokenChoice`, with the token's slot at the chosen expert.

    Attributes:
      slots: int32 [groups, group], index into [experts * capacity]; out of range if the token is
        dropped.
      gate: float32 [groups, group], the factor of the expert's output; 0 if dropped.
      is_dropped: float32 [groups, group], 1 for a token whose expert is full; 0 for padding.
    """

    slots: mtf.Tensor
    gate: mtf.Tensor
    is_dropped: mtf.Tensor


def token_choices(
    router: Router, k: int, *, normalize: bool, scale: float = 1.0, balances_all: bool = False
) -> tuple[list[TokenChoice], mtf.Tensor]:
    """Chooses the k experts with the highest scores for each token.

    k = 1 follows W. Fedus et al., "Switch Transformers" (arXiv:2101.03961), section 2.1: the gate
    is the score. k = 2 follows D. Lepikhin et al., "GShard" (arXiv:2006.16668), section 2.2: the
    gates are the two scores, normalized to a sum of 1. Unlike in GShard, no second choice is
    dropped at random.

    With groups of experts, the score of a group is the sum of its two highest scores. A token
    chooses its experts from the `top_groups` groups with the highest scores (DeepSeek-V3,
    arXiv:2412.19437, section 2.1.2).

    Args:
      router: the tokens' router.
      k: experts per token.
      normalize: whether a token's gates are normalized to a sum of 1 before they are scaled.
      scale: factor of the gates.
      balances_all: whether the load-balancing loss counts all choices, and not only the first.

    Returns:
      the k choices, and each row's load-balancing loss: the sum of its groups' losses, each times
      the group's number of tokens. A group's loss is experts * sum_e f_e * P_e (Switch, equation
      4). f_e is the number of choices of expert e divided by the number of tokens in the group, and
      P_e is the mean score of the group's tokens for e. Sigmoid scores are normalized over the
      experts first.
    """
    experts = router.experts
    probabilities = router.probabilities()
    remaining = mtf.stop_gradient(probabilities)
    if router.balance is not None:
        remaining += mtf.stop_gradient(router.balance)
    if router.groups > 1:
        remaining = _in_top_groups(remaining, router)
    choices = []
    for pick, chosen in _highest(remaining, experts, k):
        gate = mtf.reduce_sum(probabilities * chosen, reduced_dim=experts)
        choices.append(TokenChoice(pick, chosen * router.token_mask, gate))
    factor: mtf.Tensor | float = scale
    if normalize:
        factor = scale / mtf.maximum(mtf.add_n([choice.gate for choice in choices]), 1e-9)
    choices = [replace(choice, gate=choice.gate * factor) for choice in choices]
    if router.scores == "sigmoid":
        total = mtf.reduce_sum(probabilities, reduced_dim=experts)
        probabilities = probabilities / mtf.maximum(total, 1e-9)
    counted = [choice.chosen for choice in (choices if balances_all else choices[:1])]
    return choices, _load_balance(router, probabilities, mtf.add_n(counted))


def _highest(
    scores: mtf.Tensor, dim: mtf.Dimension, k: int
) -> Iterator[tuple[mtf.Tensor, mtf.Tensor]]:
    """Yields the k highest scores' indices along `dim`, each as a number and one-hot."""
    for _ in range(k):
        pick = mtf.argmax(scores, dim)
        chosen = mtf.one_hot(pick, dim, dtype=tf.float32)
        yield pick, chosen
        # Lowers chosen scores below all others, so that the next argmax skips them.
        scores -= chosen * _BELOW_ALL


def _in_top_groups(scores: mtf.Tensor, router: Router) -> mtf.Tensor:
    """Lowers the scores of experts outside a token's top groups below all other scores."""
    *tokens, experts = scores.shape.dims
    group = mtf.Dimension("router_groups", router.groups)
    member = mtf.Dimension("group_experts", experts.size // router.groups)
    members = mtf.reshape(scores, mtf.Shape([*tokens, group, member]))
    highest = [
        mtf.reduce_sum(members * chosen, reduced_dim=member)
        for _, chosen in _highest(members, member, 2)
    ]
    of_token = [chosen for _, chosen in _highest(mtf.add_n(highest), group, router.top_groups)]
    return mtf.reshape(members + (mtf.add_n(of_token) - 1.0) * _BELOW_ALL, scores.shape)


def counted_load(router: Router, choices: Sequence[TokenChoice]) -> mtf.Tensor:
    """Returns zeros [rows], whose gradient w.r.t. `balance` is each expert's number of tokens.

    The scale of the loss does not change this gradient, so that the counts stay integers, which
    float32 sums exactly up to 2**24. The update of `balance` compares them with their mean, and
    every layout takes the same decision (arXiv:2408.15664, algorithm 1).
    """
    load = mtf.stop_gradient(mtf.add_n([choice.chosen for choice in choices]))
    total = mtf.slicewise(
        tf.identity,
        [router.row_sums(load * router.balance)],
        splittable_dims=router.token_mask.shape.dims,
        grad_function=lambda op, grad: [mtf.sign(grad)],
        name="unscaled",
    )
    return total - mtf.stop_gradient(total)


def assigned(
    router: Router, choices: Sequence[TokenChoice], capacity: int
) -> list[ExpertAssignment]:
    """Assigns slots at the experts, up to `capacity` slots per expert and group.

    First choices take precedence over second choices, and earlier tokens over later ones.
    """
    assignments = []
    taken = None
    for choice in choices:
        chosen = choice.chosen
        # A token's position at its expert is the number of earlier tokens that chose the expert.
        before = mtf.cumsum(chosen, router.tokens, exclusive=True)
        if taken is not None:
            before += taken
        position = mtf.reduce_sum(before * chosen, reduced_dim=router.experts)
        counts = mtf.reduce_sum(chosen, reduced_dim=router.tokens)
        taken = counts if taken is None else taken + counts
        has_room = _float(mtf.less(position, float(capacity))) * router.token_mask
        slot = choice.expert * capacity + mtf.cast(position, tf.int32)
        nowhere = mtf.zeros_like(slot) + router.experts.size * capacity
        slots = mtf.where(mtf.greater(has_room, 0.0), slot, nowhere)
        is_dropped = router.token_mask - has_room
        assignments.append(ExpertAssignment(slots, choice.gate * has_room, is_dropped))
    return assignments


def _load_balance(router: Router, probabilities: mtf.Tensor, chosen: mtf.Tensor) -> mtf.Tensor:
    count = mtf.maximum(mtf.reduce_sum(router.token_mask, reduced_dim=router.tokens), 1.0)
    share = mtf.reduce_sum(chosen, reduced_dim=router.tokens) / count
    total = mtf.reduce_sum(probabilities, reduced_dim=router.tokens)
    return router.row_sums(share * total) * router.experts.size


def expert_choices(router: Router, capacity: mtf.Dimension) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Lets each expert choose, in each group, the tokens with the highest scores for this expert.

    Y. Zhou et al., "Mixture-of-Experts with Expert Choice Routing" (arXiv:2202.09368), section 3.
    A token may have any number of experts, or none. The assignment depends on the whole group, so
    autoregressive models must not use it.

    `capacity` is the dimension of an expert's tokens in a group, at most the size of a group.

    Returns:
      token indices, int32, and gates, float32: [groups, router_experts, capacity]. The gate is the
      score, 0 for padding.
    """
    gates, tokens = top_k(router.probabilities(), router.tokens, capacity)
    return tokens, gates


def _float(condition: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(condition, tf.float32)
