"""Our engine beside mesh-tensorflow's own (PlacementMeshImpl): the same mtf graph, one run.

    python benchmarks/engine_vs_placement.py

The graph is a training step of a language model written with mesh-tensorflow's own layers (d_model
256, 8 heads, d_ff 1024, 4 layers, vocabulary 8192, length 128, batch 16, Adam, float32), on one
device and on 2x4 virtual CPU devices. The engines take turns; the figure is the median. Losses of
the first step must agree.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf
from t2tp.mesh.layout import Layout

BATCH, LENGTH = mtf.Dimension("batch", 16), mtf.Dimension("length", 128)
D_MODEL, D_FF = mtf.Dimension("d_model", 256), mtf.Dimension("d_ff", 1024)
HEADS, D_KV = mtf.Dimension("heads", 8), mtf.Dimension("d_kv", 32)
VOCAB, LAYERS = mtf.Dimension("vocab", 8192), 4
TOKENS = mtf.Shape([BATCH, LENGTH])
LAYOUT = "batch:data;heads:model;d_ff:model;vocab:model"


def step_fn(mesh, features):
    """A training step in mesh-tensorflow's own operations and layers."""
    targets = features["targets"]
    table = mtf.get_variable(mesh, "embedding", mtf.Shape([VOCAB, D_MODEL]))
    # mesh-tensorflow's own gather, which both engines can lower.
    x = mtf.ops.gather(table, mtf.shift(targets, 1, LENGTH, wrap=False), VOCAB)
    mask = mtf.layers.attention_mask_autoregressive(
        mtf.range(mesh, LENGTH, tf.int32), dtype=tf.float32
    )
    for layer in range(LAYERS):
        with tf1.variable_scope(f"layer_{layer}"):
            y = mtf.layers.layer_norm(x, D_MODEL, name="norm_1")
            x += mtf.layers.multihead_attention(
                y, None, mask, D_KV, HEADS, is_training=True, name="attention"
            )
            y = mtf.layers.layer_norm(x, D_MODEL, name="norm_2")
            x += mtf.layers.dense_relu_dense(y, D_FF, is_training=True, name="feed_forward")
    x = mtf.layers.layer_norm(x, D_MODEL, name="norm")
    logits = mtf.einsum([x, table], output_shape=TOKENS + VOCAB)
    loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, targets, VOCAB))
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    optimizer = mtf.optimize.AdamWeightDecayOptimizer(learning_rate=1e-3)
    return {"loss": loss}, optimizer.apply_grads(gradients, variables)


def ours(mesh_shape, targets):
    """A function that runs a step on our engine, and the initial values by variable name."""
    program = t2tp.Program(
        lambda mesh, features: step_fn(mesh, features)[0],
        {"targets": t2tp.Feature(TOKENS, tf.int32)},
        mesh_shape=mesh_shape,
        layout=LAYOUT,
    )
    placed = program.place({"targets": targets})
    values = {v.spec.name: v.numpy() for v in program.variables}
    return lambda: float(program(placed)["loss"]), values


def placement(mesh_shape, targets, values):
    """A function that runs a step on PlacementMeshImpl, from the given initial values."""
    layout = Layout(mesh_shape, LAYOUT)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        outputs, updates = step_fn(
            mesh, {"targets": mtf.import_tf_tensor(mesh, tf.constant(targets), shape=TOKENS)}
        )
        devices = [f"cpu:{i}" for i in range(layout.size)]
        impl = mtf.placement_mesh_impl.PlacementMeshImpl(
            layout.mesh_shape, layout.mtf_rules, devices
        )
        lowering = mtf.Lowering(graph, {mesh: impl})
        loss = lowering.export_to_tf_tensor(outputs["loss"])
        train = tf.group(*[lowering.lowered_operation(op) for op in updates])
        session = tf1.Session(config=tf1.ConfigProto(device_count={"CPU": layout.size}))
        session.run(tf1.global_variables_initializer())
        for master in tf1.global_variables():
            master.load(values[master.op.name], session)
        session.run(lowering.copy_masters_to_slices())
    return lambda: float(session.run([loss, train])[0])


def main() -> None:
    tf.get_logger().setLevel("ERROR")
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    targets = np.random.default_rng(0).integers(0, VOCAB.size, (16, 128)).astype(np.int32)
    t2tp.connect(8)
    print(f"{'mesh':16} {'ours ms':>9} {'PlacementMeshImpl ms':>21} {'ratio':>7}")
    for mesh_shape in ("", "data:2;model:4"):
        our_step, values = ours(mesh_shape, targets)
        engines = [our_step, placement(mesh_shape, targets, values)]
        first = [step() for step in engines]
        if abs(first[0] - first[1]) > 1e-4 * abs(first[1]):
            raise AssertionError(f"the engines disagree on the first loss: {first}")
        for step in engines * 2:
            step()
        seconds: list[list[float]] = [[], []]
        for _ in range(repetitions):
            for step, times in zip(engines, seconds, strict=True):
                start = time.perf_counter()
                step()
                times.append(time.perf_counter() - start)
        mine, theirs = (1e3 * statistics.median(times) for times in seconds)
        name = mesh_shape or "one device"
        print(f"{name:16} {mine:9.0f} {theirs:21.0f} {mine / theirs:7.2f}", flush=True)


if __name__ == "__main__":
    main()
