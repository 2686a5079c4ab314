"""A stack of residual layers: a transformer's encoder or decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import mtf
from t2tp.choices import NORM_POSITIONS, RECOMPUTE
from t2tp.layers.attention import CrossAttention, DecodeState
from t2tp.layers.dropout import Dropout
from t2tp.layers.feed_forward import FeedForward
from t2tp.layers.mixture_of_experts import ExpertSums, ExpertTotals, MixtureOfExperts
from t2tp.layers.normalization import Norm
from t2tp.layers.passes import ForwardPass, FullForward, SelfAttentionLayer
from t2tp.layers.positions import sinusoidal
from t2tp.layers.sequence_parallel import between_blocks, inside_blocks
from t2tp.mesh.layout import LayoutError
from t2tp.ops.take_microbatch import take_microbatch
from t2tp.pipeline.boundary import chunk_number, enter_stage, exit_stage
from t2tp.pipeline.chain import ChainResults, RowGroups, StageChain
from t2tp.pipeline.deal import deal_layers, layers_alike
from t2tp.suggestions import nearest

_Block = Callable[[mtf.Tensor], mtf.Tensor]


class Residual:
    """A residual block: `x + dropout(block(norm(x)))`, or `norm(x + dropout(block(x)))`."""

    def __init__(
        self,
        norm: Norm,
        norm_position: str,
        dropout: Dropout,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        """Sets norm, its position and dropout.

        Args:
          norm: the norm.
          norm_position: `pre` (R. Xiong et al., arXiv:2002.04745) or `post` (arXiv:1706.03762).
          dropout: of the block's output.
          sequence_parallel: whether the length has another name between blocks; see
            `t2tp.layers.sequence_parallel`.

        Raises:
          ValueError: the position is unknown.
        """
        if norm_position not in NORM_POSITIONS:
            known = nearest(norm_position, NORM_POSITIONS, "positions")
            raise ValueError(f"norm_position is {norm_position!r}: {known}")
        self.norm = norm
        self.is_pre = norm_position == "pre"
        self._dropout = dropout
        self._sequence_parallel = sequence_parallel

    def __call__(self, x: mtf.Tensor, block: _Block, training: bool) -> mtf.Tensor:
        """Computes [..., d_model] -> [..., d_model], both with the length's name between blocks."""
        y = self.inside(self.norm(x) if self.is_pre else x)
        x += self._dropout(self.between(block(y)), training)
        return x if self.is_pre else self.norm(x)

    def between(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's output to its name between blocks."""
        return between_blocks(x) if self._sequence_parallel else x

    def inside(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames the length of a block's input to its name inside of blocks."""
        return inside_blocks(x) if self._sequence_parallel else x


@dataclass(frozen=True)
class Layer:
    """The blocks of a layer.

    Attributes:
      self_attention: the first block.
      feed_forward: the last block, possibly a mixture of experts.
      cross_attention: the block in between; None: none.
    """

    self_attention: SelfAttentionLayer
    feed_forward: FeedForward | MixtureOfExperts
    cross_attention: CrossAttention | None = None


_Forward = tuple[mtf.Tensor, ForwardPass, ExpertTotals | None]


class _Carried:
    """What goes from stage to stage.

    Attributes:
      way: the forward pass.
      tensors: the activations, the memory that layers attend to, and statistics of experts.
    """

    def __init__(self, x: mtf.Tensor, way: ForwardPass, counted: ExpertTotals | None) -> None:
        self.way = way
        self._counted = counted
        self._memory = way.memory if isinstance(way, FullForward) else None
        self.tensors = [x]
        if self._memory is not None:
            self.tensors.append(self._memory.x)
        if counted is not None:
            self.tensors += counted.sums

    def mapped(self, fn: Callable[[mtf.Tensor], mtf.Tensor]) -> _Carried:
        """Returns the same with `fn` applied to all tensors, those of the forward pass, too."""
        x, way, counted = self.with_tensors([fn(tensor) for tensor in self.tensors])
        return _Carried(x, _mapped(fn, way), counted)

    def with_tensors(self, tensors: Sequence[mtf.Tensor]) -> _Forward:
        """Returns the same with other tensors."""
        x, *rest = tensors
        way, counted = self.way, self._counted
        if self._memory is not None:
            memory = dataclasses.replace(self._memory, x=rest.pop(0))
            way = dataclasses.replace(way, memory=memory)  # type: ignore[type-var]
        if counted is not None:
            counted = ExpertTotals.with_sums(rest, counted.layers)
        return x, way, counted


def _mapped(fn: Callable[[mtf.Tensor], mtf.Tensor], value: Any) -> Any:
    """Returns a forward pass, or what it consists of, with `fn` applied to its tensors."""
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


def _kind(layer: Layer) -> tuple[type, ...]:
    """Returns what a layer is made of: layers of one kind differ in nothing but their variables."""
    return type(layer.self_attention), type(layer.feed_forward), type(layer.cross_attention)


class Stack:
    """The layers of an encoder or a decoder, with a final norm if blocks are pre-norm."""

    def __init__(
        self,
        layers: Sequence[Layer],
        residual: Residual,
        *,
        share_layers: bool = False,
        recompute: str = "none",
    ) -> None:
        """Sets layers, residual blocks and recomputation.

        Args:
          layers: in order.
          residual: wraps each block.
          share_layers: whether all layers share their variables. A timing signal then tells each
            its index: M. Dehghani et al., "Universal Transformers" (arXiv:1807.03819), section 2.1.
            The layers must be of one kind.
          recompute: the activations that the backward pass recomputes instead of storing: `none`,
            those of each `layer`, or of its `attention` or `feed_forward` blocks.

        Raises:
          ValueError: the choice is unknown, or shared layers differ in kind.
        """
        if recompute not in RECOMPUTE:
            raise ValueError(f"recompute is {recompute!r}: {nearest(recompute, RECOMPUTE, 'ways')}")
        if share_layers and len({type(layer.feed_forward) for layer in layers}) > 1:
            raise ValueError(
                "share_layers gives all layers the same variables, and some of them have experts:"
                " give experts to all (moe_every=1) or to none."
            )
        self._layers = list(layers)
        self._residual = residual
        self._share_layers = share_layers
        self._recompute = recompute

    def __call__(
        self, x: mtf.Tensor, way: ForwardPass, counted: ExpertTotals | None = None
    ) -> tuple[mtf.Tensor, ExpertTotals | None]:
        """Applies the layers.

        Args:
          x: [batch..., d_model].
          way: the forward pass; see `ForwardPass`.
          counted: the statistics of experts in layers before these, if any.

        Returns:
          like `x`, and the statistics of all layers with experts; None: there are none.

        Raises:
          LayoutError: the layout splits the layers into stages that cannot be.
        """
        x = self._residual.between(x)
        if getattr(x.mesh, "layout", None) is not None and x.mesh.layout.num_stages > 1:
            x, counted = self._in_stages(x, way, counted)
        else:
            for number, layer in enumerate(self._layers):
                x, counted = self._numbered(number, layer, x, way, counted)
        if self._residual.is_pre:
            with tf1.variable_scope("final"):
                x = self._residual.norm(x)
        return self._residual.inside(x), counted

    def _numbered(
        self,
        number: int,
        layer: Layer,
        x: mtf.Tensor,
        way: ForwardPass,
        counted: ExpertTotals | None,
    ) -> tuple[mtf.Tensor, ExpertTotals | None]:
        """Applies one layer; returns its output and the statistics of the layers up to it."""
        name = _name(number)
        if self._share_layers:
            here = mtf.constant(x.mesh, number, dtype=tf.int32)
            x += sinusoidal(here, x.shape.dims[-1], x.dtype)
        with tf1.variable_scope("shared_layer" if self._share_layers else name):
            whole = partial(self._layer, layer, way=way, name=name)
            x, *sums = self._recomputed("layer", way, whole)(x)
        return x, ExpertTotals.with_layer(counted, ExpertSums(*sums)) if sums else counted

    def _in_stages(
        self, x: mtf.Tensor, way: ForwardPass, counted: ExpertTotals | None
    ) -> tuple[mtf.Tensor, ExpertTotals | None]:
        """Applies the layers of one stage of a pipeline, which stand for those of any stage."""
        if self._share_layers:
            raise LayoutError(
                "share_layers gives all layers the same variables, which no stage of a pipeline can"
                " have alone: drop the layout rule of the layers."
            )
        dealt = deal_layers(len(self._layers), x.mesh.layout)
        layers_alike(dealt, [_kind(layer) for layer in self._layers])
        experts = sum(isinstance(layer.feed_forward, MixtureOfExperts) for layer in self._layers)
        if experts and counted is None:
            zero = mtf.constant(x.mesh, 0.0, dtype=tf.float32)
            counted = ExpertTotals(zero, zero, zero, zero, 0)
        layers = experts + (counted.layers if counted else 0)
        first_chunk = chunk_number(x.mesh.graph)
        for chunk, ranges in enumerate(dealt, first_chunk):
            build = self._chunk if x.mesh.runs_schedule else self._chunk_in_turn
            x, way, counted = build(ranges, chunk, _Carried(x, way, counted))
        return x, counted._replace(layers=layers) if counted else None

    def _chunk(self, ranges: Sequence[range], chunk: int, carried: _Carried) -> _Forward:
        """Applies a chunk of layers, of which each stage has a range, between two boundaries."""
        sizes = [len(numbers) for numbers in ranges]
        x, way, counted = carried.with_tensors(enter_stage(carried.tensors, chunk, sizes))
        for place in range(max(sizes)):
            number = next(numbers[place] for numbers in ranges if place < len(numbers))
            self._set_scopes(x.mesh, number, [numbers[place : place + 1] for numbers in ranges])
            x, counted = self._numbered(number, self._layers[number], x, way, counted)
            if place + 1 in sizes:
                carried = _Carried(x, way, counted)
                passed = exit_stage(carried.tensors, chunk, place + 1)
                x, way, counted = carried.with_tensors(passed)
        return x, way, counted

    def _chunk_in_turn(self, ranges: Sequence[range], chunk: int, carried: _Carried) -> _Forward:
        """The same, computed by each stage in turn for groups of rows."""
        x, way = carried.tensors[0], carried.way
        # Statistics of experts are those of all rows; a decoding has none.
        counts = len(carried.tensors) > 1 and not way.decoding
        groups = RowGroups(x.shape.dims[0], 1) if counts else RowGroups.from_activations(x, x.mesh)
        state: DecodeState = getattr(way, "state", {})
        changed: list[str] = []

        def layers(group: mtf.Tensor) -> ChainResults:
            def of_group(tensor: mtf.Tensor) -> mtf.Tensor:
                return take_microbatch(tensor, group, groups.whole, groups.part)

            part = carried.mapped(of_group)
            before: DecodeState = dict(getattr(part.way, "state", {}))
            done = _Carried(*self._chunk(ranges, chunk, part))
            after: DecodeState = getattr(done.way, "state", {})
            changed.extend(name for name in after if after[name] is not before.get(name))
            return ChainResults(
                done.tensors,
                [after[name] for name in changed],
                [state.get(name) for name in changed],
            )

        chain = StageChain(layers, x.mesh, groups)
        state.update(zip(changed, chain.own, strict=True))
        return carried.with_tensors(chain.passed)

    @staticmethod
    def _set_scopes(mesh: mtf.Mesh, number: int, by_stage: Sequence[range]) -> None:
        """Notes for which layer of each stage layer `number` of the graph stands."""
        outer = tf1.get_variable_scope().name
        prefix = f"{outer}/" if outer else ""
        mesh.scopes_by_stage[prefix + _name(number)] = tuple(
            prefix + _name(numbers[0]) if numbers else None for numbers in by_stage
        )

    def _layer(
        self, layer: Layer, x: mtf.Tensor, way: ForwardPass, name: str
    ) -> tuple[mtf.Tensor, ...]:
        """Applies a layer; returns its output and the statistics of its experts."""

        def attend(x: mtf.Tensor) -> tuple[mtf.Tensor]:
            with tf1.variable_scope("attention"):
                x = self._residual(
                    x,
                    lambda y: way.self_attention(layer.self_attention, y, f"{name}/self"),
                    way.training,
                )
            cross = layer.cross_attention
            if cross is not None:
                with tf1.variable_scope("cross_attention"):
                    x = self._residual(
                        x, lambda y: way.cross_attention(cross, y, f"{name}/cross"), way.training
                    )
            return (x,)

        def feed_forward(x: mtf.Tensor) -> tuple[mtf.Tensor, ...]:
            return self._feed_forward(layer.feed_forward, x, way)

        (x,) = self._recomputed("attention", way, attend)(x)
        return self._recomputed("feed_forward", way, feed_forward)(x)

    def _feed_forward(
        self, network: FeedForward | MixtureOfExperts, x: mtf.Tensor, way: ForwardPass
    ) -> tuple[mtf.Tensor, ...]:
        sums: list[mtf.Tensor] = []

        def block(y: mtf.Tensor) -> mtf.Tensor:
            if isinstance(network, FeedForward):
                return network(y, way.training)
            if way.decoding:
                return network.decode(y)
            made, counted = network(y, way.training, way.token_mask())
            sums.extend(counted)
            return made

        is_dense = isinstance(network, FeedForward)
        with tf1.variable_scope("feed_forward" if is_dense else "experts"):
            x = self._residual(x, block, way.training)
        return (x, *sums)

    def _recomputed(
        self, what: str, way: ForwardPass, fn: Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]
    ) -> Callable[[mtf.Tensor], tuple[mtf.Tensor, ...]]:
        """Returns `fn`, with its activations recomputed in the backward pass if configured."""
        if self._recompute != what or not way.training:
            return fn
        return lambda x: tuple(mtf.recompute_grad(fn, [x]))
