"""Routers of a mixture of experts: they assign tokens to experts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from t2tp import mtf
from t2tp.choices import DISPATCHES, GATINGS, ROUTER_SCORES
from t2tp.hparam_limits import Limits
from t2tp.suggestions import check_known

# Larger than the difference between any two experts' scores, `balance` included.
_BELOW_ALL = 1e6


@dataclass(frozen=True)
class RoutingConfig:
    """Routing hyperparameters.

    Attributes:
      gating: `top_1` (Switch), `top_2` (GShard), `top_k` or `expert_choice`.
      capacity_factor_train: capacity of an expert relative to a balanced load, in training.
      capacity_factor_eval: like `capacity_factor_train`, in evaluation.
      group_size: max number of tokens per group; see `mixture_of_experts.grouped_shape`.
      top_k: number of experts per token if the gating is `top_k`.
      normalize_gates: whether `top_k` normalizes a token's gates to a sum of 1.
      gate_scale: factor of the gates of `top_k`.
      router_scores: function from logits to scores, one of `t2tp.choices.ROUTER_SCORES`.
      is_balanced: whether experts are chosen by scores plus the variable `balance`.
      dispatch: `capacity`, or `dropless`: each expert computes all tokens that chose it.
      router_groups: number of groups of consecutive experts. (In shapes, `groups` are groups of
        tokens.)
      top_groups: number of groups from which a token chooses experts; see `token_choices`.
    """

    num_experts: int
    gating: str = "top_1"
    capacity_factor_train: float = 1.25
    capacity_factor_eval: float = 2.0
    group_size: int = 0
    top_k: int = 2
    normalize_gates: bool = True
    gate_scale: float = 1.0
    router_scores: str = "softmax"
    router_bias: bool = False
    is_balanced: bool = False
    dispatch: str = "capacity"
    router_groups: int = 1
    top_groups: int = 1

    @property
    def choices(self) -> int:
        """Number of experts per token."""
        return {"top_2": 2, "top_k": self.top_k}.get(self.gating, 1)

    @property
    def is_dropless(self) -> bool:
        """Whether experts have no capacity."""
        return self.dispatch == "dropless"

    def check(self) -> None:
        """Raises ValueError if an option is invalid or two contradict each other."""
        for name, value, known in (
            ("moe_gating", self.gating, GATINGS),
            ("moe_router_scores", self.router_scores, ROUTER_SCORES),
            ("moe_dispatch", self.dispatch, DISPATCHES),
        ):
            check_known(value, known, "choices", f"{name} is {value!r}")
        Limits(min=0).check("moe_group_size", self.group_size)
        Limits(above=0).check(
            "capacity_factor", [self.capacity_factor_train, self.capacity_factor_eval]
        )
        if not 1 <= self.choices <= self.num_experts:
            raise ValueError(
                f"moe_gating={self.gating} chooses {self.choices} experts for a token: this must be"
                f" from 1 to num_experts={self.num_experts}."
            )
        size, rest = divmod(self.num_experts, self.router_groups)
        is_grouped, fits = self.router_groups > 1, self.choices <= self.top_groups * size
        wrong = is_grouped and (rest or size < 2 or not fits)
        if wrong or self.top_groups > self.router_groups:
            raise ValueError(
                f"moe_router_groups={self.router_groups} must divide num_experts={self.num_experts}"
                f" into groups of 2 or more, and moe_top_groups={self.top_groups} of them must"
                f" together have at least {self.choices} experts, the number that a token chooses."
            )
        if self.gating == "expert_choice" and (self.is_dropless or self.is_balanced or is_grouped):
            raise ValueError(
                "moe_gating=expert_choice has balanced experts with a capacity: it supports neither"
                " moe_dispatch=dropless nor moe_balance_rate nor moe_router_groups."
            )

    def capacity(self, group: int, training: bool) -> int:
        """Returns an expert's capacity in a group of `group` tokens, at least 1."""
        factor = self.capacity_factor_train if training else self.capacity_factor_eval
        capacity = group * self.choices * factor / self.num_experts
        # Without 1e-9, a rounding error could raise a whole number to the next one.
        return max(1, min(group, math.ceil(capacity - 1e-9)))


@dataclass(frozen=True)
class Router:
    """The router's logits for grouped tokens.

    Attributes:
      routing: the routing hyperparameters.
      logits: float32 [groups, group, router_experts].
      token_mask: float32 [groups, group]: 0 for padding.
      experts: the dimension router_experts.
      balance: float32 [router_experts], added to the scores when experts are chosen, but not to the
        gates (L. Wang et al., arXiv:2408.15664, section 3). None: nothing is added.
    """

    routing: RoutingConfig
    logits: mtf.Tensor
    token_mask: mtf.Tensor
    experts: mtf.Dimension
    balance: mtf.Tensor | None

    @property
    def tokens(self) -> mtf.Dimension:
        """The token dimension of a group."""
        return self.token_mask.shape.dims[-1]

    def row_sums(self, x: mtf.Tensor) -> mtf.Tensor:
        """Sums over all dimensions except the first."""
        return mtf.reduce_sum(x, output_shape=mtf.Shape(self.token_mask.shape.dims[:1]))

    def probabilities(self) -> mtf.Tensor:
        """Returns the scores [groups, group, router_experts], 0 for padding."""
        if self.routing.router_scores == "sigmoid":
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


def token_choices(router: Router) -> tuple[list[TokenChoice], mtf.Tensor]:
    """Chooses the `routing.choices` experts with the highest scores for each token.

    `top_1` follows W. Fedus et al., "Switch Transformers" (arXiv:2101.03961), section 2.1: the gate
    is the score. `top_2` follows D. Lepikhin et al., "GShard" (arXiv:2006.16668), section 2.2: the
    gates are the two scores, normalized to a sum of 1. Unlike in GShard, no second choice is
    dropped at random.

    With groups of experts, the score of a group is the sum of its two highest scores. A token
    chooses its experts from the `top_groups` groups with the highest scores (DeepSeek-V3,
    arXiv:2412.19437, section 2.1.2).

    Returns:
      the choices, and each row's load-balancing loss: the sum of its groups' losses, each times
      the group's number of tokens. A group's loss is experts * sum_e f_e * P_e (Switch, equation
      4). f_e is the number of choices of expert e divided by the number of tokens in the group, and
      P_e is the mean score of the group's tokens for e. `top_k` counts all choices of a token;
      `top_1` and `top_2` count the first. Sigmoid scores are normalized over the experts first.
    """
    experts, routing = router.experts, router.routing
    is_top_k = routing.gating == "top_k"
    probabilities = router.probabilities()
    remaining = mtf.stop_gradient(probabilities)
    if router.balance is not None:
        remaining += mtf.stop_gradient(router.balance)
    if routing.router_groups > 1:
        remaining = _in_top_groups(remaining, router)
    choices = []
    for pick, chosen in _highest(remaining, experts, routing.choices):
        gate = mtf.reduce_sum(probabilities * chosen, reduced_dim=experts)
        choices.append(TokenChoice(pick, chosen * router.token_mask, gate))
    factor: mtf.Tensor | float = routing.gate_scale if is_top_k else 1.0
    normalizes = routing.normalize_gates if is_top_k else routing.choices > 1
    if normalizes:
        factor = factor / mtf.maximum(mtf.add_n([choice.gate for choice in choices]), 1e-9)
    choices = [replace(choice, gate=choice.gate * factor) for choice in choices]
    if routing.router_scores == "sigmoid":
        total = mtf.reduce_sum(probabilities, reduced_dim=experts)
        probabilities = probabilities / mtf.maximum(total, 1e-9)
    counted = [choice.chosen for choice in (choices if is_top_k else choices[:1])]
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
    group = mtf.Dimension("router_groups", router.routing.router_groups)
    member = mtf.Dimension("group_experts", experts.size // group.size)
    members = mtf.reshape(scores, mtf.Shape([*tokens, group, member]))
    highest = [
        mtf.reduce_sum(members * chosen, reduced_dim=member)
        for _, chosen in _highest(members, member, 2)
    ]
    top = _highest(mtf.add_n(highest), group, router.routing.top_groups)
    of_token = [chosen for _, chosen in top]
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
        has_room = mtf.cast(mtf.less(position, float(capacity)), tf.float32) * router.token_mask
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
