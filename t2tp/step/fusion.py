"""Fuses chains of element-wise operations, as a compiler does.

`relu(x + w) * u` is three operations and one kernel. The kernel reads x, w and u and writes one
result: half of the bytes that three kernels would move.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from t2tp import upstream
from t2tp.lowering.operation import hooks
from t2tp.mesh.layout import Layout
from t2tp.step.order import Placed
from t2tp.step.slices import kind_of, slice_bytes, updated_bytes, work_of
from t2tp.step.work import COPY, FUSED, PRODUCT, SOFTMAX, Work

# Views, whose inputs a kernel reads directly.
_VIEWS = (upstream.Depend, upstream.StopGradient)


def works(
    placed: Sequence[Placed], outputs: Iterable[upstream.Tensor], layout: Layout, *, fuses: bool
) -> Mapping[Work, float]:
    """Returns the number of a step's operations for each `Work`.

    If a part of an operation's work is padding, only the remaining fraction is counted.
    With `fuses`, a chain of element-wise operations moves only the chain's inputs and outputs.
    """
    chains = Chains(placed, outputs, layout) if fuses else None
    made: defaultdict[Work, float] = defaultdict(float)
    for each in placed:
        if not each.is_computed or kind_of(each.operation) == "free":
            continue
        work = work_of(each, layout)
        if chains is not None and each.operation in chains.fusable:
            chain = chains.begun_by.get(each.operation)
            if chain is None:
                continue
            moved = chains.moved_bytes(chain)
            work = replace(work, num_bytes=float(moved), operations=len(chain))
        elif chains is not None and work.kind == COPY and each.collectives:
            continue  # The result of a collective needs no kernel to copy it.
        made[work] += hooks(each.operation).unpadded_share(layout)
        temporaries = hooks(each.operation).temporaries(layout)
        if work.kind == PRODUCT and temporaries:  # Written and read, chunk by chunk.
            passed = 2 * math.prod(work.sizes[:3]) * sum(dtype.size for _, dtype in temporaries)
            made[replace(work, kind=SOFTMAX, flops=0.0, sizes=(), num_bytes=float(passed))] += 1
    return made


class Chains:
    """Chains of element-wise operations that read each other's results directly.

    The backward pass recomputes the intermediate results of a forward chain from the chain's
    inputs, because a few operations take less time than reading the results from memory.

    Attributes:
      fusable: the operations that may be in a chain, each with its `Placed`.
      begun_by: each chain, by its first operation.
    """

    def __init__(
        self, placed: Sequence[Placed], outputs: Iterable[upstream.Tensor], layout: Layout
    ) -> None:
        """Finds the chains of a program; see `works`."""
        self.fusable = fusable = {
            each.operation: each
            for each in placed
            if each.is_computed
            and (kind_of(each.operation) in FUSED or isinstance(each.operation, upstream.Assign))
        }
        self._needed = set(outputs)
        self._layout = layout
        self._users: dict[upstream.Tensor, set[upstream.Operation]] = {}
        self._chain_of: dict[upstream.Operation, list[upstream.Operation]] = {}
        self.begun_by: dict[upstream.Operation, list[upstream.Operation]] = {}
        depth: dict[upstream.Operation, int] = {}
        for each in placed:
            op = each.operation
            sources = [_source(x) for x in op.inputs]
            for x in sources:
                self._users.setdefault(x, set()).add(op)
            makers = [x.operation for x in sources]
            # Number of unfusable operations on the longest path to this operation.
            depth[op] = max((depth.get(m, 0) + self._is_between(m) for m in makers), default=0)
            if op not in fusable:
                continue
            # An operation that reads the result of a collective begins a chain.
            near = [m for m in makers if m in fusable and self._is_one_pass(m, op)]
            joins = [m for m in near if depth[m] == depth[op] and not each.collectives]
            self.begun_by[op] = self._chain_of[op] = [op]
            for m in joins:  # No unfusable operation is between m and op: one kernel.
                self._merge(self._chain_of[op], self._chain_of[m])
        for chain in list(self.begun_by.values()):
            readers = {user for op in chain for y in op.outputs for user in self._users.get(y, ())}
            ends = {id(self._chain_of.get(user)): user for user in readers.difference(chain)}
            user, *others = ends.values() or (None,)
            # If only one other chain reads the chain's results, both are one kernel.
            is_inner = user in fusable and not others and self._is_one_pass(chain[0], user)
            if is_inner and self._needed.isdisjoint(y for op in chain for y in op.outputs):
                self._merge(chain, self._chain_of[user])

    def _merge(self, chain: list[upstream.Operation], other: list[upstream.Operation]) -> None:
        """Moves the operations of a chain to another chain."""
        if chain is not other:
            del self.begun_by[chain[0]]
            other += chain
            self._chain_of |= dict.fromkeys(chain, other)

    def _is_between(self, op: upstream.Operation) -> bool:
        """Whether an operation has a separate kernel, which ends a chain."""
        return op not in self.fusable and kind_of(op) != "free"

    def _is_one_pass(self, one: upstream.Operation, other: upstream.Operation) -> bool:
        """Whether two operations belong to the same pass of the step."""
        return _pass_of(self.fusable[one]) == _pass_of(self.fusable[other])

    def moved_bytes(self, chain: list[upstream.Operation]) -> int:
        """Returns the bytes that a kernel of the chain reads and writes."""
        written = {y for op in chain for y in op.outputs if self.is_written(y)}
        moved = (*self._reads(chain), *written)
        updated = sum(updated_bytes(op, self._layout) for op in chain)
        return updated + sum(slice_bytes(x, self._layout) for x in moved)

    def is_written(self, tensor: upstream.Tensor) -> bool:
        """Whether a tensor is written to memory; intermediate results of a kernel are not."""
        op = tensor.operation
        if op not in self._chain_of or tensor in self._needed:
            return True
        return any(self._is_written_for(op, user) for user in self._users.get(tensor, ()))

    def _is_written_for(self, op: upstream.Operation, user: upstream.Operation) -> bool:
        if user not in self.fusable:
            return True
        return self._chain_of[user] is not self._chain_of[op] and self._is_one_pass(op, user)

    def read_for(self, tensor: upstream.Tensor, user: upstream.Operation) -> set[upstream.Tensor]:
        """Returns the tensors that an operation reads from memory to get one of its inputs."""
        x = _source(tensor)
        if self.is_written(x):
            return {x}
        if user in self.fusable and self._chain_of.get(user) is self._chain_of[x.operation]:
            return set()
        return set().union(*(self.read_for(y, x.operation) for y in x.operation.inputs))

    def _reads(
        self, chain: list[upstream.Operation], seen: frozenset = frozenset()
    ) -> set[upstream.Tensor]:
        """Returns the tensors that a chain reads from memory.

        If an input is the result of a chain in another pass, it is recomputed: the inputs of that
        chain are read instead.
        """
        read: set[upstream.Tensor] = set()
        for op in chain:
            for x in map(_source, op.inputs):
                other = self._chain_of.get(x.operation)
                if other is chain:
                    continue
                if other is None or self._is_one_pass(x.operation, op) or x.operation in seen:
                    read.add(x)
                else:
                    read |= self._reads(other, seen | set(chain))
        return read


def _pass_of(placed: Placed) -> tuple:
    return placed.phase, placed.times, placed.part, placed.is_recomputed


def _source(tensor: upstream.Tensor) -> upstream.Tensor:
    """Returns the tensor of which `tensor` is a view, or `tensor` itself if it is no view."""
    while isinstance(tensor.operation, _VIEWS) and tensor.operation.inputs:
        tensor = tensor.operation.inputs[0]
    return tensor
