"""Memory of a step on a processor: what is alive at each operation of the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from t2tp import upstream
from t2tp.mesh.layout import Layout
from t2tp.ops.variables.sharded_variable import GatherOperation
from t2tp.planner.sequence import Placed
from t2tp.planner.slices import ELEMENTWISE, kind_of, slice_bytes
from t2tp.planner.work import BACKWARD, FORWARD, UPDATE, Memory


class Liveness:
    """When each tensor of a step is made and last read.

    Attributes:
      layer_bytes: sums over the step: `kept` of the forward pass for the backward pass, `gathered`
        weights in the activations' dtype, `gradients` in the backward pass, and their `sums` over
        microbatches.
    """

    def __init__(
        self, placed: Sequence[Placed], outputs: Iterable[upstream.Tensor], layout: Layout
    ) -> None:
        self._placed = placed
        self._layout = layout
        self._root: dict[upstream.Tensor, upstream.Tensor] = {}
        self._made: dict[upstream.Tensor, int] = {}
        self._last: dict[upstream.Tensor, int] = {}
        for i, each in enumerate(placed):
            self._visit(i, each)
        for tensor in outputs:
            self._last[self._root_of(tensor)] = len(placed)
        self._purpose = {tensor: self._purpose_of(tensor) for tensor in self._made}
        self.layer_bytes = Counter(
            {name: self._sum(name) for name in ("kept", "gathered", "gradients", "sums")}
        )

    def _visit(self, i: int, each: Placed) -> None:
        op = each.operation
        for x in op.inputs:
            self._last[self._root_of(x)] = i
        if isinstance(op, upstream.WhileLoopOperation):
            self._pass_on(i, op)
        elif each.is_view and op.inputs:
            # A recomputed function's inputs come before its results.
            is_recomputed = isinstance(op, upstream.CustomGradientOperation)
            sources = op._fn_outputs if is_recomputed else op.inputs
            for y, x in zip(op.outputs, sources, strict=False):
                self._root[y] = self._root_of(x)
        else:
            for y in op.outputs:
                if each.is_computed:
                    self._made[y] = i
                    self._last.setdefault(y, i)

    def _pass_on(self, i: int, op: upstream.WhileLoopOperation) -> None:
        """An output of a loop is a sum over its iterations: memory beside that of the addends."""
        for y, x in zip(op.outputs, op._body_outputs, strict=False):
            self._last[self._root_of(x)] = i
            self._made[y] = self._first_of_loop(op)
            self._last[y] = i

    def _first_of_loop(self, op: upstream.WhileLoopOperation) -> int:
        inside = set(op._body_ops)
        return next((i for i, p in enumerate(self._placed) if p.operation in inside), 0)

    def _root_of(self, tensor: upstream.Tensor) -> upstream.Tensor:
        return self._root.get(tensor, tensor)

    def _bytes(self, tensor: upstream.Tensor) -> int:
        return slice_bytes(tensor, self._layout)

    def _sum(self, purpose: str) -> int:
        return sum(
            self._bytes(t)
            for t, its in self._purpose.items()
            if its == purpose and (purpose != "gathered" or self._is_kept(t))
        )

    def _is_kept(self, tensor: upstream.Tensor) -> bool:
        """Whether it is computed in the forward pass and read later."""
        made, last = self._phase(self._made[tensor]), self._phase(self._last[tensor])
        return made == FORWARD and last != FORWARD

    def _phase(self, i: int) -> str:
        return self._placed[i].phase if i < len(self._placed) else UPDATE

    def _purpose_of(self, tensor: upstream.Tensor) -> str:
        made, last = self._phase(self._made[tensor]), self._phase(self._last[tensor])
        op = tensor.operation
        if isinstance(op, (upstream.ops.ImportLaidOutTensorOperation,)):
            return "features"
        if isinstance(op, upstream.WhileLoopOperation):
            return "sums"
        if isinstance(op, (upstream.Variable, GatherOperation)):
            return "gathered"
        if made == FORWARD and last != FORWARD:
            return "kept"
        if made == BACKWARD and last == UPDATE:
            return "gradients"
        return "temporary"

    def peaks(self, constant: Mapping[str, float]) -> list[Memory]:
        """Returns the peak of each part of a step.

        Args:
          constant: bytes by purpose of what is always there, such as weights.
        """
        alive: dict[str, float] = {}
        peaks: dict[tuple[str, tuple[str, ...]], Memory] = {}
        freed: dict[int, list[upstream.Tensor]] = {}
        born: dict[int, list[upstream.Tensor]] = {}
        for tensor, i in self._made.items():
            born.setdefault(i, []).append(tensor)
            freed.setdefault(self._last[tensor], []).append(tensor)
        points = _points(self._placed)
        for i, each in enumerate(self._placed):
            new = [(t, self._bytes(t)) for t in born.get(i, ())]
            gone = [t for t in freed.get(i, ()) if t not in born.get(i, ())]
            reused = _in_place(each, new, [self._bytes(t) for t in gone])
            for tensor, size in new:
                purpose = self._purpose[tensor]
                alive[purpose] = alive.get(purpose, 0.0) + size
            point = next(points)
            total = sum(alive.values()) - reused
            if point not in peaks or total > peaks[point].total - sum(constant.values()):
                by_purpose = dict(alive)
                by_purpose["temporary"] = by_purpose.get("temporary", 0.0) - reused
                peaks[point] = Memory(*point, {**constant, **by_purpose})
            for tensor in (*gone, *(t for t in freed.get(i, ()) if t in born.get(i, ()))):
                alive[self._purpose[tensor]] -= self._bytes(tensor)
        return list(peaks.values())


def _in_place(
    each: Placed, new: Sequence[tuple[upstream.Tensor, int]], gone: Sequence[int]
) -> float:
    """Returns the bytes of outputs that take the memory of inputs that nothing else reads."""
    if kind_of(each.operation) != ELEMENTWISE or len(new) != 1:
        return 0.0
    return float(new[0][1]) if new[0][1] in gone else 0.0


_LAYER = re.compile(r"\blayer_\d+")


def _points(placed: Sequence[Placed]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the part of the step of each operation, and what each further layer adds there."""
    layers = [_layer(each.operation.name) for each in placed]
    in_forward = [layer for layer, p in zip(layers, placed, strict=True) if p.phase == FORWARD]
    deepest = max(in_forward, default="")
    passed_deepest = False
    for each, layer in zip(placed, layers, strict=True):
        if each.phase == FORWARD:
            yield "end of the forward pass", ("kept", "gathered")
        elif each.phase == UPDATE:
            yield "update", ("gradients",)
        else:
            passed_deepest |= layer not in ("", deepest)
            if passed_deepest:
                yield "end of the backward pass", ("gradients",)
            else:
                yield "begin of the backward pass", ("kept", "gathered")


def _layer(name: str) -> str:
    """Returns the part of a name that has a layer's index: `layer_03`."""
    found = _LAYER.search(name)
    return found.group() if found else ""
