"""A stack of residual layers: a transformer's encoder or decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.building.mesh import context_of
from t2tp.choices import RECOMPUTE
from t2tp.layers.mixture_of_experts import ExpertTotals, MixtureOfExperts, Totals
from t2tp.layers.passes import DecodeState, EncodedMemory, ForwardPass, FullForward
from t2tp.layers.shares import plus_share
from t2tp.layers.transformer_layer import Layer, Residual, recomputed
from t2tp.mesh.layout import Layout
from t2tp.ops.take_microbatch import take_microbatch
from t2tp.pipeline.assign_layers import assign_layers, check_layers_match
from t2tp.pipeline.boundary import chunk_number, enter_stage, exit_stage
from t2tp.pipeline.chain import ChainResults, RowGroups, StageChain
from t2tp.suggestions import check_known


@dataclasses.dataclass(frozen=True)
class StackPass:
    """A stack and the input of its first layer, or of its next one.

    Attributes:
      x: activations [batch..., d_model].
      totals: the expert statistics so far, of earlier stacks first.
      embedded: the input of the first layer, if the layers add shares of it.
      within: returns the context in which the stack's layers are built, such as a variable scope.
    """

    stack: Stack
    x: mtf.Tensor
    forward: ForwardPass
    totals: Totals = ()
    within: Callable[[], AbstractContextManager] = nullcontext
    embedded: mtf.Tensor | None = None

    @property
    def _memory(self) -> EncodedMemory | None:
        return self.forward.memory if isinstance(self.forward, FullForward) else None

    @property
    def tensors(self) -> list[mtf.Tensor]:
        """The tensors that a pipeline stage receives and passes on.

        They are the activations, the first layer's input, the memory of cross-attention, and expert
        statistics.
        """
        embedded = [] if self.embedded is None else [self.embedded]
        memory = [] if self._memory is None else [self._memory.x]
        sums = [tensor for each in self.totals if each is not None for tensor in each.sums]
        return [self.x, *embedded, *memory, *sums]

    def with_tensors(self, tensors: Iterable[mtf.Tensor]) -> StackPass:
        """Returns the pass with the first of `tensors` in place of `self.tensors`."""
        left, forward = iter(tensors), self.forward
        x = next(left)
        embedded = None if self.embedded is None else next(left)
        if self._memory is not None:
            memory = dataclasses.replace(self._memory, x=next(left))
            forward = dataclasses.replace(forward, memory=memory)  # type: ignore[arg-type]
        totals = tuple(
            each and each.with_sums(next(left) for _ in each.sums) for each in self.totals
        )
        return dataclasses.replace(self, x=x, embedded=embedded, forward=forward, totals=totals)

    def mapped(self, fn: Callable[[mtf.Tensor], mtf.Tensor]) -> StackPass:
        """Returns a copy with `fn` applied to all tensors, including the forward pass's tensors."""
        copy = self.with_tensors([fn(tensor) for tensor in self.tensors])
        return dataclasses.replace(copy, forward=_mapped(fn, copy.forward))

    def applied(self, numbers: Iterable[int]) -> StackPass:
        """Applies layers; returns the pass with their output."""
        x, totals = self.x, self.totals
        with self.within():
            for number in numbers:
                x, totals = self.stack._apply_layer(number, x, self.embedded, self.forward, totals)
        return dataclasses.replace(self, x=x, totals=totals)


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


def apply_stacks(passes: Sequence[StackPass]) -> list[tuple[mtf.Tensor, Totals]]:
    """Applies stacks that do not read each other, such as a student's and its teacher's.

    In the schedule of a pipeline, the stacks go through the stages together, and only the first
    stack has a backward pass.

    Returns:
      for each stack, a tensor like its `x`, and the expert statistics of its earlier stacks and of
      its own.
    """
    context = context_of(passes[0].x.mesh)
    begun = [each.stack._begin(each) for each in passes]
    if context.layout is None or context.layout.num_stages == 1:
        ended = [each.applied(range(len(each.stack._layers))) for each in begun]
    elif context.runs_schedule:
        ended = _in_stages(begun, context.layout, _chunk)
    else:
        ended = [_in_stages([each], context.layout, _chunk_in_turn)[0] for each in begun]
    return [each.stack._end(each) for each in ended]


# Of each stack, each stage's layers.
_Ranges = Sequence[Sequence[range]]


def _in_stages(
    passes: list[StackPass],
    layout: Layout,
    build: Callable[[list[StackPass], _Ranges, int], list[StackPass]],
) -> list[StackPass]:
    """Applies the layers of all pipeline stages, which share one graph."""
    assigned: list[list[list[range]]] = []
    for each in passes:
        layers = each.stack._layers
        assigned.append(assign_layers(len(layers), layout, assigned[0] if assigned else ()))
        check_layers_match(assigned[-1], [layer.kind for layer in layers])
    for chunk, ranges in enumerate(zip(*assigned, strict=True), chunk_number(passes[0].x.graph)):
        passes = build(passes, ranges, chunk)
    return passes


def _chunk(passes: list[StackPass], ranges: _Ranges, chunk: int) -> list[StackPass]:
    """Applies a chunk of layers between two stage boundaries."""
    learned = len(passes[0].tensors)

    def crossed(through: Callable, *given: object) -> list[StackPass]:
        tensors = [x for each in passes for x in each.tensors]
        left = iter(through(tensors, chunk, *given, learned))
        return [each.with_tensors(left) for each in passes]

    # Each stage's numbers of layers, one for each stack.
    sizes = [tuple(map(len, by_stack)) for by_stack in zip(*ranges, strict=True)]
    passes = crossed(enter_stage, [*map(sum, sizes)])
    begin: Sequence[int] = [0 for _ in passes]
    for end in sorted(set(sizes)):
        passes = [
            _apply_places(each, by_stage, range(*places))
            for each, by_stage, *places in zip(passes, ranges, begin, end, strict=True)
        ]
        passes = crossed(exit_stage, sum(end))
        begin = end
    return passes


def _apply_places(given: StackPass, by_stage: Sequence[range], places: range) -> StackPass:
    """Applies the layers at these positions of the stages' ranges."""
    with given.within():
        outer = tf1.get_variable_scope().name
    prefix, numbers = f"{outer}/" if outer else "", []
    for place in places:
        own = [next(iter(layers[place:]), None) for layers in by_stage]
        numbers.append(next(number for number in own if number is not None))
        context_of(given.x.mesh).stage_scopes[prefix + _name(numbers[-1])] = tuple(
            None if number is None else prefix + _name(number) for number in own
        )
    return given.applied(numbers)


def _chunk_in_turn(passes: list[StackPass], ranges: _Ranges, chunk: int) -> list[StackPass]:
    """Applies a chunk like `_chunk`, but stage after stage, for groups of rows."""
    (given,) = passes
    x, forward = given.x, given.forward
    # Expert statistics are sums over all rows, so a pass with statistics has all rows in one
    # group. Decoding has no statistics.
    activations = 1 if given.embedded is None else 2
    counts = len(given.tensors) > activations and isinstance(forward, FullForward)
    groups = RowGroups(x.shape.dims[0], 1) if counts else RowGroups.from_activations(x, x.mesh)
    state: DecodeState = getattr(forward, "state", {})
    changed: list[str] = []

    def layers(group: mtf.Tensor) -> ChainResults:
        def of_group(tensor: mtf.Tensor) -> mtf.Tensor:
            return take_microbatch(tensor, group, groups.whole, groups.part)

        part = given.mapped(of_group)
        before: DecodeState = dict(getattr(part.forward, "state", {}))
        (done,) = _chunk([part], ranges, chunk)
        after: DecodeState = getattr(done.forward, "state", {})
        changed.extend(name for name in after if after[name] is not before.get(name))
        return ChainResults(
            done.tensors, [after[name] for name in changed], [state.get(name) for name in changed]
        )

    chain = StageChain(layers, x.mesh, groups)
    state.update(zip(changed, chain.own, strict=True))
    return [given.with_tensors(chain.passed)]


def _name(number: int) -> str:
    return f"layer_{number:02d}"


class Stack:
    """The layers of an encoder or a decoder. A final norm follows, unless norms are `post`."""

    def __init__(
        self,
        layers: Sequence[Layer],
        residual: Residual,
        *,
        recompute: str = "none",
        embedding_shortcut: bool = False,
    ) -> None:
        """Sets layers, residual blocks, recomputation and shortcuts.

        `recompute` selects the activations that the backward pass recomputes instead of storing
        them: `none`, all of a `layer`, or its `attention` or `feed_forward` blocks. With
        `embedding_shortcut`, a learned share of the first layer's input is added to the input of
        each layer (as in github.com/karpathy/nanochat).

        Raises:
          ValueError: the choice is unknown.
        """
        check_known(recompute, RECOMPUTE, "choices", f"recompute is {recompute!r}")
        self._layers = list(layers)
        self._residual = residual
        self._recompute = recompute
        self._embedding_shortcut = embedding_shortcut

    def __call__(
        self, x: mtf.Tensor, forward: ForwardPass, earlier: Totals = ()
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies the layers to [batch..., d_model]; `earlier` are earlier stacks' statistics.

        Returns:
          a tensor like `x`, and the expert statistics of all stacks so far.
        """
        return apply_stacks([StackPass(self, x, forward, earlier)])[0]

    def _begin(self, given: StackPass) -> StackPass:
        """Returns the input of the first layer."""
        with given.within():
            x = self._residual.between(given.x)
            trains_experts = isinstance(given.forward, FullForward)
            networks = [layer.feed_forward for layer in self._layers if trains_experts]
            experts = [network for network in networks if isinstance(network, MixtureOfExperts)]
            zero = None
            if experts:
                zero = ExpertTotals.zero(x.mesh, experts[0].rows_of(x.shape), len(experts))
            embedded = None
            if self._embedding_shortcut:
                # With a tensor of its own, the layers' gradients are added first, as in a pipeline.
                embedded = mtf.slicewise(tf.identity, [x], splittable_dims=x.shape.dims)
        return dataclasses.replace(given, x=x, embedded=embedded, totals=(*given.totals, zero))

    def _end(self, ended: StackPass) -> tuple[mtf.Tensor, Totals]:
        """Returns the results of the stack, from the results of its last layer."""
        x = ended.x
        with ended.within():
            if self._residual.norm_position != "post":
                with tf1.variable_scope("final"):
                    x = self._residual.norm(x)
            return self._residual.inside(x), ended.totals

    def _apply_layer(
        self,
        number: int,
        x: mtf.Tensor,
        embedded: mtf.Tensor | None,
        forward: ForwardPass,
        totals: Totals,
    ) -> tuple[mtf.Tensor, Totals]:
        """Applies one layer; returns its output and the expert statistics so far.

        `embedded` is as in `StackPass`.
        """
        name = _name(number)
        with tf1.variable_scope(name):
            if embedded is not None:
                x = plus_share(x, embedded, "embedding_share", [], 0.0)
            apply = partial(
                self._layers[number].apply,
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
