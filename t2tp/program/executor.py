"""Runs a program on all local processors at the same time, and explains failures.

If a processor fails or does not reach a collective, the collective's other members wait forever.
TensorFlow can limit this wait (`timeout_seconds`), but then keeps a sleeping thread for every
collective ever run. So the calling thread waits with a time limit instead, and then aborts all
collectives. Each waiting processor then raises an error that names its collective.
"""

import concurrent.futures
import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context as eager_context

from t2tp.mesh.collective_log import Collective
from t2tp.mesh.layout import Layout
from t2tp.processes.cluster import Cluster
from t2tp.processes.coordination import CoordinationClient, one_line

T = TypeVar("T")

# Processors that return within this time after the abort were waiting in a collective.
_RETURN_SECONDS = 2.0
_NODE = re.compile(r"\{\{node (\S*Collective\S*)\}\}")


class CollectiveTimeoutError(TimeoutError):
    """Processors waited in a collective for others that did not reach it in time."""


class DifferentProgramsError(ValueError):
    """Processes of one cluster have traced different programs."""


def _keep_arithmetic() -> None:
    """Turns off the graph optimizer's reordering of sums and products, in this thread.

    Whether the optimizer reorders a product depends on the other operations that use the product.
    So the same formula would be rounded differently in different graphs.
    """
    options = eager_context.context().function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
    options.config_proto_serialized = config


class Executor:
    """Calls a function for each local processor, each in its own thread."""

    def __init__(self, layout: Layout, cluster: Cluster) -> None:
        """Creates the threads."""
        self._layout = layout
        self._cluster = cluster
        self._limit = cluster.time_limit  # Of the current call.
        self._is_checked = cluster.coordination is None
        self._threads = concurrent.futures.ThreadPoolExecutor(
            len(cluster.local_pnums),
            thread_name_prefix="processor",
            initializer=_keep_arithmetic if layout.exact_sums else None,
        )

    def __call__(
        self, call: Callable[[int], T], log: Sequence[Collective], steps: int = 1
    ) -> list[T]:
        """Runs `call(pnum)` for all local processors at once; returns the results in pnum order.

        A timeout error names one of the program's collectives, which `log` lists.

        Raises:
          CollectiveTimeoutError: the calls took longer than the cluster's time limit for `steps`.
          DifferentProgramsError: at the first call, another process has another `log`.
          MissingProcessError: another process failed, has ended or does not answer.
          Exception: an error of a processor's program.
        """
        if not self._is_checked:
            self._check_same(log)
            self._is_checked = True
        self._limit = steps * self._cluster.time_limit
        calls = {pnum: self._threads.submit(call, pnum) for pnum in self._cluster.local_pnums}
        _, pending = concurrent.futures.wait(
            calls.values(), timeout=self._limit, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        errors = _errors(calls)
        if not errors and not pending:
            return [done.result() for done in calls.values()]
        culprits = [error for error in errors.values() if not _is_others_fault(error)]
        coordination = self._cluster.coordination
        if culprits and coordination is not None:
            coordination.report("failed", one_line(culprits[0]))
        if pending:  # They may wait in a collective for a processor that will not reach it.
            eager_context.context().abort_collective_ops(
                tf.errors.ABORTED, "another processor of the mesh failed or did not come"
            )
            if not errors:
                concurrent.futures.wait(pending, timeout=_RETURN_SECONDS)
                raise self._timeout(_errors(calls), log)
            concurrent.futures.wait(pending)
        if not culprits and coordination is not None:
            raise self._others_fault(coordination, _errors(calls), log)
        raise next(iter(culprits or errors.values()))

    def _check_same(self, log: Sequence[Collective]) -> None:
        """Checks that all processes have traced the same collectives, in the same order.

        Otherwise a process would add or gather other tensors than the rest, without an error if
        their sizes are equal.
        """
        own = [f"{_describe(each)}, {each.bytes} bytes of {each.sums}" for each in log]
        digest = hashlib.sha256("\n".join(own).encode()).hexdigest()
        if len({*self._cluster.process_allgather("program", digest)}) == 1:
            return
        first, *others = self._cluster.process_allgather("collectives", own)
        for process_id, other in enumerate(others, start=1):
            for here, there in itertools.zip_longest(first, other, fillvalue="nothing"):
                if here != there:
                    raise DifferentProgramsError(
                        f"process {process_id} has built another program than process 0. It runs"
                        f" {there}, where process 0 runs {here}. A model must be built in the same"
                        " order in all processes: not in the order of a set, for example."
                    )

    def _others_fault(
        self,
        coordination: CoordinationClient,
        errors: Mapping[int, BaseException],
        log: Sequence[Collective],
    ) -> BaseException:
        """Returns the error to raise when only collectives failed in this process."""
        coordination.report("waited", {pnum: _node(error) for pnum, error in errors.items()})
        explanation = coordination.explain()
        if explanation is not None:
            return coordination.missing(explanation)
        if any(kind == "waited" for kind, _ in coordination.reports().values()):
            return self._timeout(errors, log)
        return next(iter(errors.values()))

    def _timeout(
        self, errors: Mapping[int, BaseException], log: Sequence[Collective]
    ) -> CollectiveTimeoutError:
        """Returns an error that names the waiting and the absent processors and the collective."""
        where = {pnum: _node(error) for pnum, error in errors.items()}
        advice = ""
        if (coordination := self._cluster.coordination) is not None:
            coordination.report("waited", where)
            for kind, nodes in coordination.reports().values():
                if kind == "waited":
                    where.update({int(pnum): node for pnum, node in nodes.items()})
            advice = " ".join(filter(None, [coordination.explain(), coordination.advice()]))
        logging.debug("processors stood at %s", where)
        waiting = [(_index_in_log(log, node), pnum, node) for pnum, node in where.items() if node]
        limit = f"within {self._limit:.0f} s"
        if not waiting:
            text = f"Processors did not finish {limit}, and none of them waited in a collective."
            return CollectiveTimeoutError(f"{text} {advice}".rstrip())
        index, pnum, node = min(waiting)
        names = self._layout.mesh_shape.dimension_names
        axes = [names.index(axis) for axis in log[index].axes] if index < len(log) else []
        members = self._layout.axes.groups(axes)[pnum] if axes else list(where)
        nodes = [p for p in members if where.get(p) == node]
        absent = [p for p in members if where.get(p) != node]
        text = f"{_processors(nodes, self._cluster)} waited in"
        text += f" {_describe(log[index]) if index < len(log) else node}"
        if absent:
            text += (
                f" for {_processors(absent, self._cluster).lower()}, which did not come {limit}."
            )
        else:
            text += f", to which all came, and which did not end {limit}."
        return CollectiveTimeoutError(f"{text} {advice}".rstrip())


def _errors(calls: Mapping[int, concurrent.futures.Future]) -> dict[int, BaseException]:
    """Returns the errors raised so far, by processor."""
    done = {pnum: call for pnum, call in calls.items() if call.done()}
    return {p: error for p, call in done.items() if (error := call.exception()) is not None}


def _node(error: BaseException) -> str | None:
    """Returns the node of the failed collective; None if the processor failed elsewhere."""
    match = _NODE.search(str(error)) if isinstance(error, tf.errors.OpError) else None
    return match[1] if match else None


def _is_others_fault(error: BaseException) -> bool:
    """Whether a processor failed because others did: in a collective, or cancelled before one."""
    return _node(error) is not None or isinstance(error, tf.errors.CancelledError)


def _index_in_log(log: Sequence[Collective], node: str) -> int:
    """Returns a node's index among the program's collectives; `len(log)` for another node."""
    scope = node.rpartition("/")[0]
    return next((i for i, c in enumerate(log) if c.name == scope), len(log))


def _describe(collective: Collective) -> str:
    axes = " and ".join(repr(axis) for axis in collective.axes)
    consumer = repr(collective.name) if collective.name else "an output"
    return f"the {collective.kind} over mesh axis {axes} that {consumer} needs"


def _processors(pnums: Sequence[int], cluster: Cluster) -> str:
    """Formats processors, with their processes if there are several."""
    text = f"Processor{'s' if len(pnums) > 1 else ''} {', '.join(map(str, pnums))}"
    if cluster.num_processes > 1:
        owners = sorted({cluster.process_of(pnum) for pnum in pnums})
        text += f" (process{'es' if len(owners) > 1 else ''} {', '.join(map(str, owners))})"
    return text
