"""A stack of residual layers: a transformer's encoder or decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.choices import RECOMPUTE
from t2tp.layers.mixture_of_experts import ExpertTotals, MixtureOfExperts, Totals
from t2tp.layers.passes import DecodeState, ForwardPass, FullForward
from t2tp.layers.transformer_layer import Layer, Residual, recomputed
from t2tp.ops.take_microbatch import take_microbatch
from t2tp.pipeline.assign_layers import assign_layers, check_layers_match
from t2tp.pipeline.boundary import chunk_number, enter_stage, exit_stage
from t2tp.pipeline.chain import ChainResults, RowGroups, StageChain
from t2tp.suggestions import check_known

# The input of a layer: activations, the forward pass, statistics of earlier layers.
_LayerInput = tuple[mtf.Tensor, ForwardPass, Totals]


class _StageTensors:
    """The tensors that a pipeline stage receives and passes on.

    `tensors` are the activations, the memory of cross-attention, and expert statistics.
    """

    def __init__(self, x: mtf.Tensor, forward: ForwardPass, totals: Totals) -> None:
        self.forward = forward
        self._totals = totals
        self._memory = forward.memory if isinstance(forward, FullForward) else None
        self.tensors = [x]
        if self._memory is not None:
            self.tensors.append(self._memory.x)
        self.tensors += [tensor for each in totals if each is not None for tensor in each.sums]

    def mapped(self, fn: Callable[[mtf.Tensor], mtf.Tensor]) -> _StageTensors:
        """Returns a copy with `fn` applied to all tensors, including the forward pass's tensors."""
        x, forward, totals = self.with_tensors([fn(tensor) for tensor in self.tensors])
        return _StageTensors(x, _mapped(fn, forward), totals)

    def with_tensors(self, tensors: Sequence[mtf.Tensor]) -> _LayerInput:
        """Returns the input of a layer, with `tensors` in place of `self.tensors`."""
        x, *rest = tensors
        forward = self.forward
        if self._memory is not None:
            memory = dataclasses.replace(self._memory, x=rest.pop(0))
            forward = dataclasses.replace(forward, memory=memory)  # type: ignore[arg-type]
        left = iter(rest)
        totals = tuple(
            each and each.with_sums(next(left) for _ in each.sums) for each in self._totals
        )
        return x, forward, totals


def _mapped(fn: Callable[[mtf.Tensor], mtf.Tensor], value: Any) -> Any:
    """Returns a forward pass, or a field of one, with `fn` applied to its tensors."""
    if isinstance(value, mtf.Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {name: _mapped(fn, x) for name, x in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {x.name: getattr(value, x.name) for x in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _mapped(fn, x) for name, x in fields.items()})
    return value


def _name(number: int) -> str:
    return f"layer_{number:02d}"


class Stack:
    """The layers of an encoder or a decoder. A final norm follows, unless norms are `post`."""

    def __init__(
        self, layers: Sequence[Layer], residual: Residual, *, recompute: str = "none"
    ) -> None:
        """Sets layers, residual blocks and recomputation.

        `recompute` selects the activations that the backward pass recomputes instead of storing
        them: `none`, all of a `layer`, or its `attention` or `feed_forward` blocks.

        Raises:
          ValueError: the choice is unknown.
        """
        check_known(recompute, RECOMPUTE, "choices", f"recompute is {recompute!r}")
        self._layers = list(layers)
        self._residual = residual
        self._recompute = recompute

    def __call__(
        self, x: mtf.Tensor, forward: ForwardPass, earlier: Totals = ()
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies the layers to [batch..., d_model]; `earlier` are earlier stacks' statistics.

        Returns:
          a tensor like `x`, and the expert statistics of all stacks so far.
        """
        x = self._residual.between(x)
        trains_experts = isinstance(forward, FullForward)
        networks = [layer.feed_forward for layer in self._layers if trains_experts]
        experts = [network for network in networks if isinstance(network, MixtureOfExperts)]
        zero = None
        if experts:
            zero = ExpertTotals.zero(x.mesh, experts[0].rows_of(x.shape), len(experts))
        totals = (*earlier, zero)
        layout = context_of(x.mesh).layout
        if layout is not None and layout.num_stages > 1:
            x, totals = self._in_stages(x, forward, totals)
        else:
            for number, layer in enumerate(self._layers):
                x, totals = self._apply_layer(number, layer, x, forward, totals)
        if self._residual.norm_position != "post":
            with tf1.variable_scope("final"):
                x = self._residual.norm(x)
        return self._residual.inside(x), totals

    def _apply_layer(
        self, number: int, layer: Layer, x: mtf.Tensor, forward: ForwardPass, totals: Totals
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies one layer; returns its output and the expert statistics so far."""
        name = _name(number)
        with tf1.variable_scope(name):
            apply = partial(
                layer.apply,
                forward=forward,
                name=name,
                residual=self._residual,
                recompute=self._recompute,
            )
            x, *sums = (recomputed(apply, forward) if self._recompute == "layer" else apply)(x)
        own = totals[-1]
        if not sums or own is None:
            return x, totals
        return x, (
            *totals[:-1],
            own.with_sums([a + b for a, b in zip(own.sums, sums, strict=True)]),
        )

    def _in_stages(
        self, x: mtf.Tensor, forward: ForwardPass, totals: Totals
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies the layers of all pipeline stages, which share one graph."""
        assigned = assign_layers(len(self._layers), x.mesh.layout)
        check_layers_match(assigned, [layer.kind for layer in self._layers])
        first_chunk = chunk_number(x.mesh.graph)
        for chunk, ranges in enumerate(assigned, first_chunk):
            build = self._chunk if context_of(x.mesh).runs_schedule else self._chunk_in_turn
            x, forward, totals = build(ranges, chunk, _StageTensors(x, forward, totals))
        return x, totals

    def _chunk(self, ranges: Sequence[range], chunk: int, received: _StageTensors) -> _LayerInput:
        """Applies a chunk of layers between two stage boundaries.

        `ranges` has the numbers of each stage's layers in this chunk.
        """
        sizes = [len(numbers) for numbers in ranges]
        x, forward, totals = received.with_tensors(enter_stage(received.tensors, chunk, sizes))
        for place in range(max(sizes)):
            number = next(numbers[place] for numbers in ranges if place < len(numbers))
            self._set_scopes(x.mesh, number, [numbers[place : place + 1] for numbers in ranges])
            x, totals = self._apply_layer(number, self._layers[number], x, forward, totals)
            if place + 1 in sizes:
                results = _StageTensors(x, forward, totals)
                passed = exit_stage(results.tensors, chunk, place + 1)
                x, forward, totals = results.with_tensors(passed)
        return x, forward, totals

    def _chunk_in_turn(
        self, ranges: Sequence[range], chunk: int, received: _StageTensors
    ) -> _LayerInput:
        """Applies a chunk like `_chunk`, but stage after stage, for groups of rows."""
        x, forward = received.tensors[0], received.forward
        # Expert statistics are sums over all rows, so a pass with statistics has all rows in one
        # group. Decoding has no statistics.
        counts = len(received.tensors) > 1 and isinstance(forward, FullForward)
        groups = RowGroups(x.shape.dims[0], 1) if counts else RowGroups.from_activations(x, x.mesh)
        state: DecodeState = getattr(forward, "state", {})
        changed: list[str] = []

        def layers(group: mtf.Tensor) -> ChainResults:
            def of_group(tensor: mtf.Tensor) -> mtf.Tensor:
                return take_microbatch(tensor, group, groups.whole, groups.part)

            part = received.mapped(of_group)
            before: DecodeState = dict(getattr(part.forward, "state", {}))
            done = _StageTensors(*self._chunk(ranges, chunk, part))
            after: DecodeState = getattr(done.forward, "state", {})
            changed.extend(name for name in after if after[name] is not before.get(name))
            return ChainResults(
                done.tensors,
                [after[name] for name in changed],
                [state.get(name) for name in changed],
            )

        chain = StageChain(layers, x.mesh, groups)
        state.update(zip(changed, chain.own, strict=True))
        return received.with_tensors(chain.passed)

    @staticmethod
    def _set_scopes(mesh: mtf.Mesh, number: int, by_stage: Sequence[range]) -> None:
        """Records the layers that the graph's layer `number` stands for, one or none per stage."""
        outer = tf1.get_variable_scope().name
        prefix = f"{outer}/" if outer else ""
        context_of(mesh).stage_scopes[prefix + _name(number)] = tuple(
            prefix + _name(numbers[0]) if numbers else None for numbers in by_stage
        )
