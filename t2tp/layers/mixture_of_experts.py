"""A mixture of experts in the place of a feed-forward network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import GATINGS, Choice, Router, expert_choices, token_choices
from t2tp.layers.grouping import grouped
from t2tp.nearest import nearest
from t2tp.ops.gather import checked_gather


class ExpertSums(NamedTuple):
    """What a layer counts: float32 scalars, sums over the batch.

    Attributes:
      load_balance: of the load-balancing loss of each token's group.
      router_z: of the tokens' squared log(Z).
      tokens: how many real tokens there are.
      choices: how many experts they asked for.
      dropped: how many of these had no room. (Expert choice: tokens without an expert.)
    """

    load_balance: mtf.Tensor
    router_z: mtf.Tensor
    tokens: mtf.Tensor
    choices: mtf.Tensor
    dropped: mtf.Tensor


@dataclass(frozen=True)
class Routing:
    """How tokens come to experts.

    Attributes:
      num_experts: how many there are.
      gating: `top_1` (Switch), `top_2` (GShard) or `expert_choice`.
      capacity_factor_train: an expert has so many times the places in a group that it would need if
        all were asked equally often.
      capacity_factor_eval: the same when not training.
      group_size: see `grouping.grouped`.
    """

    num_experts: int
    gating: str = "top_1"
    capacity_factor_train: float = 1.25
    capacity_factor_eval: float = 2.0
    group_size: int = 0

    def capacity(self, group: int, training: bool) -> int:
        """Places of an expert in a group of so many tokens."""
        factor = self.capacity_factor_train if training else self.capacity_factor_eval
        wanted = group * (2 if self.gating == "top_2" else 1) * factor / self.num_experts
        return max(1, min(group, math.ceil(wanted - 1e-9)))


class MixtureOfExperts:
    """Feed-forward networks of which each token uses one or two.

    The experts are the dimension `experts`. Split over the axis that splits the batch, tokens go to
    their experts by one all-to-all, and come back by another (GShard, arXiv:2006.16668, section
    3.2). Split over another axis, say `expert_groups:<the batch's axis>` too: each processor of it
    then picks what its experts get, and their results are gathered. If that axis splits the length
    elsewhere, and rows make several groups, say `length_groups:<that axis>`: the all-to-alls are
    then over it. (An axis that splits the length and no experts may split `length_groups`, and
    `expert_length_groups`, which they are called at the experts.)
    """

    def __init__(self, routing: Routing, **feed_forward: object) -> None:
        """Says which.

        Args:
          routing: how tokens come to experts.
          **feed_forward: arguments of `FeedForward`, the experts.

        Raises:
          ValueError: there is no such gating, or a number is out of range.
        """
        if routing.gating not in GATINGS:
            known = nearest(routing.gating, GATINGS, "gatings")
            raise ValueError(f"moe_gating is {routing.gating!r}: {known}")
        least = 2 if routing.gating == "top_2" else 1
        if routing.num_experts < least or routing.group_size < 0:
            raise ValueError(
                f"{routing.gating} needs at least {least} experts, and groups of a size of 0 (a"
                f" row) or above, not {routing.num_experts} and {routing.group_size}."
            )
        if min(routing.capacity_factor_train, routing.capacity_factor_eval) <= 0:
            raise ValueError("capacity factors must be above 0.")
        self._routing = routing
        self._experts = mtf.Dimension("experts", routing.num_experts)
        self._router_experts = mtf.Dimension("router_experts", routing.num_experts)
        self._feed_forward = FeedForward(experts=[self._experts], **feed_forward)  # type: ignore[arg-type]

    def __call__(
        self, x: mtf.Tensor, training: bool, is_real: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, ExpertSums]:
        """Lets experts read the tokens.

        Args:
          x: [batch, ..., d_model].
          training: whether dropout is on; it also says which capacity factor counts.
          is_real: booleans [batch, ...]: padding goes to no expert. None: all are real.

        Returns:
          like `x`, zeros for tokens without an expert; and what was counted.
        """
        tokens, router = self._routed(x, is_real)
        capacity = self._routing.capacity(router.tokens.size, training)
        return self._mixed(x, tokens, router, capacity, training)

    def decode(self, x: mtf.Tensor) -> mtf.Tensor:
        """[batch, ..., d_model] -> the same, in decoding: nobody is turned away.

        Raises:
          ValueError: experts choose the tokens, which needs those to come.
        """
        if self._routing.gating == "expert_choice":
            raise ValueError(
                "moe_gating=expert_choice looks at the whole sequence, so there is no decoding with"
                " it: take top_1 or top_2."
            )
        tokens, router = self._routed(x, None, group_size=0)
        return self._mixed(x, tokens, router, router.tokens.size, training=False)[0]

    def _routed(
        self, x: mtf.Tensor, is_real: mtf.Tensor | None, group_size: int | None = None
    ) -> tuple[mtf.Tensor, Router]:
        """The tokens in groups, and what the router says of them; it computes in float32."""
        size = self._routing.group_size if group_size is None else group_size
        tokens = grouped(x, size)
        *groups, group, d_model = tokens.shape.dims
        dims = [d_model, self._router_experts]
        matrix = variables.weight(x.mesh, "router", dims, d_model.size**-0.5, tf.float32)
        logits = mtf.einsum(
            [mtf.cast(tokens, tf.float32), matrix],
            output_shape=mtf.Shape([*groups, group, self._router_experts]),
        )
        shape = mtf.Shape([*groups, group])
        if is_real is None:
            real = mtf.ones(x.mesh, shape, tf.float32)
        else:
            real = mtf.reshape(mtf.cast(is_real, tf.float32), shape)
        return tokens, Router(logits, real, self._router_experts)

    def _mixed(
        self,
        x: mtf.Tensor,
        tokens: mtf.Tensor,
        router: Router,
        capacity: int,
        training: bool,
    ) -> tuple[mtf.Tensor, ExpertSums]:
        if self._routing.gating == "expert_choice":
            y, load_balance, choices, dropped = self._by_expert(tokens, router, capacity, training)
        else:
            y, load_balance, choices, dropped = self._by_token(tokens, router, capacity, training)
        count = mtf.reduce_sum(router.is_real)
        sums = ExpertSums(load_balance, router.z_sum(), count, choices, dropped)
        return mtf.reshape(y, x.shape), sums

    def _by_token(
        self, tokens: mtf.Tensor, router: Router, capacity: int, training: bool
    ) -> tuple[mtf.Tensor, ...]:
        """Tokens choose: [groups, group, d_model], and the load balance, choices and dropped."""
        k = 2 if self._routing.gating == "top_2" else 1
        choices, load_balance = token_choices(router, k, capacity)
        *groups, _, d_model = tokens.shape.dims
        slots = mtf.Dimension("expert_slots", self._experts.size * capacity)
        sent = [
            mtf.einsum(
                [_one_hot(choice, slots, tokens.dtype), tokens],
                output_shape=mtf.Shape([*groups, slots, d_model]),
            )
            for choice in choices
        ]
        made = self._apply(sum(sent[1:], sent[0]), capacity, training)
        parts = []
        for choice in choices:
            back = mtf.einsum(
                [_one_hot(choice, slots, made.dtype), made], output_shape=tokens.shape
            )
            parts.append(back * mtf.cast(choice.gate, back.dtype))
        dropped = sum((c.is_dropped for c in choices[1:]), choices[0].is_dropped)
        asked = mtf.reduce_sum(router.is_real) * float(k)
        return sum(parts[1:], parts[0]), load_balance, asked, mtf.reduce_sum(dropped)

    def _by_expert(
        self, tokens: mtf.Tensor, router: Router, capacity: int, training: bool
    ) -> tuple[mtf.Tensor, ...]:
        """Experts choose: the same. There is nothing to balance."""
        *groups, group, d_model = tokens.shape.dims
        places = mtf.Dimension("capacity", capacity)
        chosen, gates = expert_choices(router, places)
        wanted = mtf.Shape([*groups, self._router_experts, places, d_model])
        sent = checked_gather(tokens, chosen, group, output_shape=wanted)
        slots = mtf.Dimension("expert_slots", self._experts.size * capacity)
        sent = mtf.reshape(sent, mtf.Shape([*groups, slots, d_model]))
        made = mtf.reshape(self._apply(sent, capacity, training), wanted)
        y = mtf.einsum(
            [mtf.one_hot(chosen, group, dtype=made.dtype), made * mtf.cast(gates, made.dtype)],
            output_shape=tokens.shape,
        )
        ones = mtf.cast(mtf.greater(gates, 0.0), tf.float32)
        experts_of = mtf.einsum(
            [mtf.one_hot(chosen, group, dtype=tf.float32), ones],
            output_shape=mtf.Shape([*groups, group]),
        )
        is_left = mtf.cast(mtf.equal(experts_of, 0.0), tf.float32) * router.is_real
        count = mtf.reduce_sum(router.is_real)
        return y, mtf.zeros(y.mesh, [], tf.float32), count, mtf.reduce_sum(is_left)

    def _apply(self, sent: mtf.Tensor, capacity: int, training: bool) -> mtf.Tensor:
        """What the experts make of [groups, expert_slots, d_model]; the reshapes bring tokens to
        their experts and back."""
        *groups, _, d_model = sent.shape.dims
        names = ("expert_groups", "expert_length_groups")[: len(groups)]
        here = [mtf.Dimension(n, dim.size) for n, dim in zip(names, groups, strict=True)]
        places = mtf.Dimension("capacity", capacity)
        at_experts = mtf.reshape(sent, mtf.Shape([*here, self._experts, places, d_model]))
        # An expert's tokens in one piece: its products, and their gradients, then need no copies.
        in_one_piece = mtf.Shape([self._experts, *here, places, d_model])
        made = self._feed_forward(mtf.transpose(at_experts, in_one_piece), training)
        return mtf.reshape(mtf.transpose(made, at_experts.shape), sent.shape)


def _one_hot(choice: Choice, slots: mtf.Dimension, dtype: tf.DType) -> mtf.Tensor:
    """[groups, group, expert_slots]; nothing is made of it: see `t2tp.mesh.einsum`."""
    return mtf.one_hot(choice.slots, slots, dtype=dtype)
