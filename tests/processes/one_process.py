"""Runs a scenario as one of several processes of a test.

The arguments are the name of the scenario, and its options as JSON. The last line of the output is
the result of the scenario as JSON.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import t2tp
from t2tp import mtf
from t2tp.processes import coordination, loopback
from t2tp.processes.cluster import Cluster, connect
from t2tp.program.replicas import ReplicaCheck
from tests.patience import PATIENCE
from tests.program.reaching import connects, own_address

BATCH, D_IN, D_FF = mtf.Dimension("batch", 8), mtf.Dimension("d_in", 6), mtf.Dimension("d_ff", 12)
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


class OnlyOurPart:
    """A batch that records which of its rows are read."""

    shape = X.shape

    def __init__(self) -> None:
        self.rows: set[int] = set()

    def __getitem__(self, part: tuple[slice, ...]) -> np.ndarray:
        self.rows.update(range(len(X))[part[0]])
        return X[part]


def training_step(mesh, features):
    """Trains a perceptron with a hidden layer and dropout to reproduce its input."""
    x = features["x"]
    w = mtf.get_variable(mesh, "w", mtf.Shape([D_IN, D_FF]))
    v = mtf.get_variable(mesh, "v", mtf.Shape([D_FF, D_IN]))
    hidden = mtf.dropout(
        mtf.relu(mtf.einsum([x, w], [BATCH, D_FF])), is_training=True, keep_prob=0.9
    )
    y = mtf.einsum([hidden, v], [BATCH, D_IN])
    loss = mtf.reduce_mean(mtf.square(y - x))
    mtf.optimize.AdafactorOptimizer(learning_rate=0.01).apply_grads(
        mtf.gradients([loss], [w, v]), mesh.graph.trainable_variables
    )
    return {"loss": loss, "y": y, "hidden": hidden}


def program(cluster: Cluster, mesh_shape: str) -> t2tp.Program:
    return t2tp.Program(
        training_step,
        {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))},
        layout=t2tp.Layout(mesh_shape, "batch:data;d_ff:model"),
        cluster=cluster,
    )


def train(cluster: Cluster, mesh_shape: str, steps: int, directory: str | None = None) -> dict:
    """Trains for some steps; returns losses and outputs.

    Also returns which rows this process has read, and its number of slices of each variable.
    """
    trained = program(cluster, mesh_shape)
    batch = OnlyOurPart()
    outputs = [trained({"x": batch}, step=k) for k in range(steps)]
    if directory is not None:
        t2tp.save_checkpoint(directory, trained, steps)
    return {
        "losses": [float(each["loss"]) for each in outputs],
        "y": outputs[-1]["y"].tolist(),
        "hidden": outputs[-1]["hidden"].tolist(),
        "rows": sorted(batch.rows),
        "slices": {v.spec.name: len(v.slices) for v in trained.variables},
    }


def resume(cluster: Cluster, mesh_shape: str, steps: int, directory: str) -> dict:
    """Restores a checkpoint, trains for more steps, and returns their losses."""
    trained = program(cluster, mesh_shape)
    first = t2tp.restore_checkpoint(directory, trained)
    done = range(first, first + steps)
    return {"losses": [float(trained({"x": X}, step=k)["loss"]) for k in done]}


def die(cluster: Cluster, mesh_shape: str, who: int, how: str, time_limit: float = 0) -> dict:
    """Ends or stops process `who` at step 3; all other processes continue until they notice it.

    A time limit applies only from step 3 on, because the first step is slow on a busy machine.
    """
    trained = program(cluster, mesh_shape)
    if cluster.coordination is not None:
        cluster.coordination.advice = lambda: "Start again."
    for step in range(1000):
        if step == 3 and time_limit:
            object.__setattr__(cluster, "time_limit", time_limit)
        if step == 3 and cluster.process_id == who:
            if how == "raise":
                raise OSError("the disk is full")
            if how == "hang":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
        if how == "kill at a barrier":
            cluster.barrier("step")
        if how == "kill before a barrier" and step == 3:
            time.sleep(0.5)  # The others notice at the barrier that a process is gone.
            cluster.barrier("late")
        if how == "kill beside a sleeper" and step == 3:
            time.sleep(1000)
        trained({"x": X}, step=step)
    return {}


def talk(cluster: Cluster) -> dict:
    """Each process sends three texts to all; process 0 broadcasts one, process 2 announces one."""
    me = cluster.process_id
    said = [cluster.process_allgather("greeting", f"{me}: {count}") for count in range(3)]
    agreed = cluster.process_broadcast("decision", f"by {me}")
    if me == 2:
        cluster.coordination.announce("from 2")
    deadline = time.monotonic() + PATIENCE
    while not cluster.coordination.notice and time.monotonic() < deadline:
        time.sleep(0.1)
    return {"said": said, "agreed": agreed, "notice": cluster.coordination.notice}


def reach(cluster: Cluster) -> dict:
    """Returns at which of this host's addresses the ports of this process can be reached."""
    cluster.barrier("started")
    ports = sorted({listener.getsockname()[1] for listener in loopback.listeners()})
    found = {
        port: {host: connects(host, port) for host in ("127.0.0.1", own_address()) if host}
        for port in ports
    }
    cluster.barrier("looked")
    return {
        "own": int(cluster.coordination.addresses[cluster.process_id].split(":")[1]),
        "found": found,
    }


def device(cluster: Cluster, mesh_shape: str, how: str, time_limit: float = 0) -> dict:
    """In the second step, the processors with the last row fail, or hang for some seconds.

    A time limit applies from the second step on.
    """

    def fail(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 50.0, "on purpose")]):
            return tf.identity(x)

    def hang(x):
        seconds = tf.where(tf.reduce_max(x) < 50.0, 0.0, 8.0)
        with tf.control_dependencies(
            [tf.py_function(lambda s: time.sleep(float(s)), [seconds], [])]
        ):
            return tf.identity(x)

    def step(mesh, features):
        fn = {"fail": fail, "hang": hang}[how]
        x = mtf.slicewise(fn, [features["x"]], splittable_dims=[BATCH, D_IN])
        return {"sum": mtf.reduce_sum(x, name="total")}

    failing = t2tp.Program(
        step,
        {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))},
        layout=t2tp.Layout(mesh_shape, "batch:data"),
        cluster=cluster,
    )
    failing({"x": X})
    if time_limit:
        object.__setattr__(cluster, "time_limit", time_limit)
    x = X.copy()
    x[-1] = 100
    failing({"x": x})
    return {}


def replicas(cluster: Cluster, mesh_shape: str) -> dict:
    """Lets process 1 change a slice; returns the mismatches before and after the change."""
    trained = program(cluster, mesh_shape)
    trained({"x": X})
    check = ReplicaCheck(trained.variables)
    before = check.mismatches()
    if cluster.process_id == 1:
        part = trained.variables["w"].slices[0]
        part.assign(part + 1e-3)
    found = check.mismatches()
    return {"before": len(before), "found": [each.describe(cluster) for each in found]}


def connect_alone(cluster: Cluster) -> str:
    """Connects again as a single process; returns the error."""
    try:
        connect(1)
    except ValueError as error:
        return str(error)
    return ""


def in_another_order(cluster: Cluster) -> str:
    """Lets process 1 add the same tensors in another order; returns the error or the sums."""

    def step(mesh, features):
        x = features["x"]
        sums = {"once": mtf.reduce_sum(x), "twice": mtf.reduce_sum(2 * x)}
        return {name: sums[name] for name in sorted(sums, reverse=cluster.process_id == 1)}

    features = {"x": t2tp.Feature(mtf.Shape([BATCH, D_IN]))}
    built = t2tp.Program(step, features, mesh_shape="data:2", layout="batch:data", cluster=cluster)
    try:
        return str({name: float(value) for name, value in built({"x": X}).items()})
    except ValueError as error:
        return str(error)


SCENARIOS = {
    each.__name__: each
    for each in (train, die, talk, reach, device, replicas, connect_alone, in_another_order)
}


def main() -> None:
    """Runs a scenario, and prints its result."""
    scenario, options = sys.argv[1], json.loads(sys.argv[2])
    for name, seconds in options.pop("limits", {}).items():
        setattr(coordination, name, seconds)
    cluster = connect(options.pop("processors", 4), **options.pop("connect", {}))
    print(json.dumps(SCENARIOS[scenario](cluster, **options)))
