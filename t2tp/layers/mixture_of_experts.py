"""Mixture of experts, in place of a feed-forward network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.layers import variables
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.gating import (
    Router,
    RoutingConfig,
    TokenChoice,
    assigned,
    counted_load,
    token_choices,
)
from t2tp.ops.top_k import top_k


class ExpertSums(NamedTuple):
    """Statistics of one layer, float32 [rows].

    An element is the sum over the tokens of one row. If groups have several rows, it is the sum
    over the tokens of one group (`MixtureOfExperts.rows_of`). The sum over all elements is computed
    once, after the last layer, so that all layouts, microbatches and stages add the same numbers in
    the same order.

    Attributes:
      load_balance: the load-balancing loss of each group, times the number of its tokens.
      router_z: the tokens' z-loss; see `Router.z_sum`.
      choices: number of token-expert assignments before any is dropped. With expert choice, number
        of tokens.
      dropped: number of dropped assignments. With expert choice, number of tokens without an
        expert.
    """

    load_balance: mtf.Tensor
    router_z: mtf.Tensor
    choices: mtf.Tensor
    dropped: mtf.Tensor


class ExpertTotals(NamedTuple):
    """Statistics of a stack.

    Attributes:
      sums: the sums of the layers' statistics so far.
      layers: number of layers with experts.
    """

    sums: ExpertSums
    layers: int

    @classmethod
    def zero(cls, mesh: mtf.Mesh, rows: mtf.Dimension, layers: int) -> ExpertTotals:
        """Returns the statistics before the first layer; `rows` is the result of `rows_of`."""
        zero = mtf.zeros(mesh, mtf.Shape([rows]), tf.float32)
        return cls(ExpertSums(zero, zero, zero, zero), layers)

    def with_sums(self, sums: Iterable[mtf.Tensor]) -> ExpertTotals:
        """Returns totals with these sums and the same number of layers."""
        return self._replace(sums=ExpertSums(*sums))


# The statistics of each stack of a model; None for a stack without experts.
Totals = tuple[ExpertTotals | None, ...]


class MixtureOfExperts:
    """Feed-forward networks (experts); a router chooses some of them for each token.

    A mesh axis that splits `experts` usually splits the batch too, as the axis `expert` does in the
    layout `batch:data+expert;experts:expert`. The reshape from [batch, expert_slots, d_model] to
    [expert_groups, experts, capacity, d_model] then sends tokens to their experts by an all-to-all
    over `expert`. A second all-to-all sends the results back (GShard, arXiv:2006.16668, section
    3.2). Between the all-to-alls, the dimension of the groups is `expert_groups`. Without a rule of
    its own, it inherits the batch's axes, minus the experts' axes: here `data`.

    A row may have several groups of tokens. The dimension of these groups is `length_groups`, and
    between the all-to-alls `expert_length_groups`. Then one axis may split both the length and the
    experts, as in the layout `length:expert;length_groups:expert;experts:expert`: each processor
    along the axis has some groups of a row, and the all-to-alls exchange their tokens. If different
    axes split the length and the experts, as in `length:seq;experts:data`, the rules
    `length_groups:seq;expert_length_groups:seq` split the groups over the length's axis, too, so
    that no token is sent along it.

    With `dropless`, there are no slots: tokens are all-gathered over the axis of `experts` to
    [expert_groups, expert_length, d_model], and the results are reduce-scattered. Without a rule of
    its own, `expert_length` inherits the length's axes, minus the experts' axes.
    """

    def __init__(self, routing: RoutingConfig, network: FeedForward, shared_d_ff: int = 0) -> None:
        """Sets routing, the network of an expert, and the hidden size of a shared expert (0: none).

        All tokens use the shared expert.
        """
        routing.check()
        self._routing = routing
        self._experts = mtf.Dimension("experts", routing.num_experts)
        self._router_experts = mtf.Dimension("router_experts", routing.num_experts)
        self._feed_forward = replace(network, experts=[self._experts])
        self._shared = replace(network, d_ff=shared_d_ff) if shared_d_ff else None

    def __call__(
        self, x: mtf.Tensor, training: bool, token_mask: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, ExpertSums]:
        """Applies the experts to the tokens.

        A token's output is the sum of its experts' outputs times the gates, plus the shared
        expert's output, if there is one.

        Args:
          x: [batch, ..., d_model].
          training: whether dropout is on; also selects the capacity factor.
          token_mask: booleans [batch, ...], false for padding, which no expert computes. None: no
            padding.
        """
        tokens, router = self._routed(x, token_mask)
        capacity = self._routing.capacity(router.tokens.size, training)
        return self._mixed(x, tokens, router, capacity, training)

    def rows_of(self, shape: mtf.Shape) -> mtf.Dimension:
        """Returns the first dimension of tokens [batch, ..., d_model] after grouping."""
        return self._grouped(shape, self._routing.group_size).dims[0]

    def decode(self, x: mtf.Tensor) -> mtf.Tensor:
        """Applies the experts to [batch, ..., d_model] in decoding; no token is dropped.

        Raises:
          ValueError: gating is expert_choice, which needs all tokens at once.
        """
        if self._routing.gating == "expert_choice":
            raise ValueError(
                "moe_gating=expert_choice looks at the whole sequence, so there is no decoding with"
                " it: use top_1, top_2 or top_k."
            )
        tokens, router = self._routed(x, None, group_size=0)
        return self._mixed(x, tokens, router, router.tokens.size, training=False)[0]

    def _grouped(self, shape: mtf.Shape, size: int) -> mtf.Shape:
        return shape if self._routing.is_dropless else grouped_shape(shape, size)

    def _routed(
        self, x: mtf.Tensor, token_mask: mtf.Tensor | None, group_size: int | None = None
    ) -> tuple[mtf.Tensor, Router]:
        """Returns the grouped tokens and their router, which computes in float32."""
        routing = self._routing
        size = routing.group_size if group_size is None else group_size
        tokens = mtf.reshape(x, self._grouped(x.shape, size))
        *groups, group, d_model = tokens.shape.dims
        matrix = variables.matrix(
            x.mesh,
            "router",
            [d_model],
            [self._router_experts],
            d_model.size**-0.5,
            tf.float32,
            is_head=True,
        )
        logits = mtf.einsum(
            [mtf.cast(tokens, tf.float32), matrix],
            output_shape=mtf.Shape([*groups, group, self._router_experts]),
        )
        if routing.router_bias:
            logits += variables.bias(x.mesh, "router_bias", [self._router_experts], tf.float32)
        balance = None
        if routing.is_balanced:
            balance = variables.balance(x.mesh, "balance", self._router_experts)
        shape = mtf.Shape([*groups, group])
        if token_mask is None:
            mask = mtf.ones(x.mesh, shape, tf.float32)
        else:
            mask = mtf.reshape(mtf.cast(token_mask, tf.float32), shape)
        return tokens, Router(routing, logits, mask, self._router_experts, balance)

    def _mixed(
        self, x: mtf.Tensor, tokens: mtf.Tensor, router: Router, capacity: int, training: bool
    ) -> tuple[mtf.Tensor, ExpertSums]:
        if self._routing.gating == "expert_choice":
            y, load_balance, choices, dropped = self._by_expert(tokens, router, capacity, training)
        else:
            y, load_balance, choices, dropped = self._by_token(tokens, router, capacity, training)
        sums = ExpertSums(load_balance, router.z_sum(), choices, dropped)
        y = mtf.reshape(y, x.shape)
        if self._shared is not None:
            with tf1.variable_scope("shared"):
                y += self._shared(x, training)
        return y, sums

    def _by_token(
        self, tokens: mtf.Tensor, router: Router, capacity: int, training: bool
    ) -> tuple[mtf.Tensor, ...]:
        """Token choice: returns [groups, group, d_model], load balance, choices and dropped."""
        routing = self._routing
        choices, load_balance = token_choices(router)
        num_choices = router.row_sums(router.token_mask) * float(routing.choices)
        if router.balance is not None:
            # `counted_load` is 0, but its gradient w.r.t. `balance` is the experts' load. It
            # becomes a gradient of the loss, because `losses.with_experts` adds
            # `num_choices - stop_gradient(num_choices)` to the loss.
            num_choices += counted_load(router, choices)
        if routing.is_dropless:
            y = self._dropless(tokens, router, choices)
            return y, load_balance, num_choices, mtf.zeros_like(num_choices)
        assignments = assigned(router, choices, capacity)
        *groups, _, d_model = tokens.shape.dims
        slots = mtf.Dimension("expert_slots", self._experts.size * capacity)
        # `t2tp.lowering.einsum` multiplies by a one-hot tensor without storing it.
        dispatched = [
            mtf.einsum(
                [mtf.one_hot(choice.slots, slots, dtype=tokens.dtype), tokens],
                output_shape=mtf.Shape([*groups, slots, d_model]),
            )
            for choice in assignments
        ]
        y = self._apply(mtf.add_n(dispatched), capacity, training)
        parts = []
        for choice in assignments:
            one_hot = mtf.one_hot(choice.slots, slots, dtype=y.dtype)
            back = mtf.einsum([one_hot, y], output_shape=tokens.shape)
            parts.append(back * mtf.cast(choice.gate, back.dtype))
        dropped = router.row_sums(mtf.add_n([choice.is_dropped for choice in assignments]))
        return mtf.add_n(parts), load_balance, num_choices, dropped

    def _dropless(
        self, tokens: mtf.Tensor, router: Router, choices: Sequence[TokenChoice]
    ) -> mtf.Tensor:
        """Applies the experts to [batch, ..., d_model] without a capacity.

        The reshapes before the experts all-gather the tokens over the axis that splits the experts,
        and the reshape after the experts reduce-scatters the results.
        """
        rows = tokens.shape.dims[:-1]
        names = [*("expert_groups", "expert_length")[: len(rows)], *(d.name for d in rows[2:])]
        at_experts = [mtf.Dimension(n, dim.size) for n, dim in zip(names, rows, strict=True)]
        k = mtf.Dimension("choices", len(choices))
        # A number out of range selects no expert, so experts do not compute padding.
        nowhere = mtf.cast(mtf.equal(router.token_mask, 0.0), tf.int32) * self._experts.size
        picks = mtf.stack([choice.expert + nowhere for choice in choices], k.name, len(rows))
        gates = mtf.stack([choice.gate for choice in choices], k.name, len(rows))
        y = self._feed_forward.chosen(
            *(
                mtf.reshape(t, mtf.Shape([*at_experts, t.shape.dims[-1]]))
                for t in (tokens, picks, gates)
            )
        )
        return mtf.reshape(y, tokens.shape)

    def _by_expert(
        self, tokens: mtf.Tensor, router: Router, capacity: int, training: bool
    ) -> tuple[mtf.Tensor, ...]:
        """Expert choice: returns tensors like `_by_token`; the load balance is 0.

        Each expert chooses, in each group, the tokens with the highest scores for this expert
        (Y. Zhou et al., "Mixture-of-Experts with Expert Choice Routing", arXiv:2202.09368, section
        3). The gate is the score, 0 for padding. A token may have any number of experts, or none.
        The assignment depends on the whole group, so autoregressive models must not use it.
        """
        *groups, group, d_model = tokens.shape.dims
        capacity_dim = mtf.Dimension("capacity", capacity)
        # [groups, router_experts, capacity], the gates and the indices of the tokens.
        gates, chosen = top_k(router.probabilities(), group, capacity_dim)
        shape = mtf.Shape([*groups, self._router_experts, capacity_dim, d_model])
        dispatched = mtf.gather(tokens, chosen, group, output_shape=shape, is_checked=True)
        slots = mtf.Dimension("expert_slots", self._experts.size * capacity)
        dispatched = mtf.reshape(dispatched, mtf.Shape([*groups, slots, d_model]))
        outputs = mtf.reshape(self._apply(dispatched, capacity, training), shape)
        y = mtf.einsum(
            [
                mtf.one_hot(chosen, group, dtype=outputs.dtype),
                outputs * mtf.cast(gates, outputs.dtype),
            ],
            output_shape=tokens.shape,
        )
        ones = mtf.cast(mtf.greater(gates, 0.0), tf.float32)
        experts_of = mtf.einsum(
            [mtf.one_hot(chosen, group, dtype=tf.float32), ones],
            output_shape=mtf.Shape([*groups, group]),
        )
        is_dropped = mtf.cast(mtf.equal(experts_of, 0.0), tf.float32) * router.token_mask
        count = router.row_sums(router.token_mask)
        return y, mtf.zeros_like(count), count, router.row_sums(is_dropped)

    def _apply(self, dispatched: mtf.Tensor, capacity: int, training: bool) -> mtf.Tensor:
        """Applies the experts to [groups, expert_slots, d_model].

        The reshapes become the all-to-alls that send tokens to their experts and back.
        """
        *groups, _, d_model = dispatched.shape.dims
        names = ("expert_groups", "expert_length_groups")[: len(groups)]
        group_dims = [mtf.Dimension(n, dim.size) for n, dim in zip(names, groups, strict=True)]
        capacity_dim = mtf.Dimension("capacity", capacity)
        at_experts = mtf.reshape(
            dispatched, mtf.Shape([*group_dims, self._experts, capacity_dim, d_model])
        )
        # Makes each expert's tokens contiguous, so that matmuls and gradients need no copies.
        contiguous = mtf.Shape([self._experts, *group_dims, capacity_dim, d_model])
        y = self._feed_forward(mtf.transpose(at_experts, contiguous), training)
        return mtf.reshape(mtf.transpose(y, at_experts.shape), dispatched.shape)


def grouped_shape(shape: mtf.Shape, group_size: int) -> mtf.Shape:
    """Returns the shape of a batch's tokens in groups of equal size, the same on every mesh.

    Args:
      shape: [batch, ..., d_model].
      group_size: max tokens per group; 0: one group per row. The size is lowered until a row
        consists of whole groups, or a group of whole rows.

    Returns:
      [groups, group, d_model]. The first dimension has the name of `shape`'s first dimension, so
      that the same rule splits it. If `shape` is [batch, length, d_model] and rows have several
      groups, the result is [batch, length_groups, group, d_model].
    """
    rows, *within, d_model = shape.dims
    per_row = math.prod(dim.size for dim in within)
    size = group_size or per_row
    if size <= per_row:
        group = _largest_divisor(per_row, size)
    else:
        group = per_row * _largest_divisor(rows.size, size // per_row)
    if len(within) == 1 and group < per_row:
        groups = [rows, mtf.Dimension(f"{within[0].name}_groups", per_row // group)]
    else:
        groups = [mtf.Dimension(rows.name, rows.size * per_row // group)]
    return mtf.Shape([*groups, mtf.Dimension("group", group), d_model])


def _largest_divisor(number: int, limit: int) -> int:
    return next(n for n in range(min(number, max(limit, 1)), 0, -1) if number % n == 0)
