"""The language model's training step in mesh-tensorflow's own operations, on either engine.

    --engine=placement   mesh-tensorflow's engine: every operation once per device, in one TF1 graph
    --engine=t2tp        t2tp's engine, with the same mesh-tensorflow graph

The update is Adam, written in mesh-tensorflow's operations like mesh-tensorflow's own optimizers.
"""

from __future__ import annotations

import turn

turn.PARSER.add_argument("--engine", choices=("placement", "t2tp"), default="placement")
args = turn.arguments()

import math

import language_model as lm
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf as mended
from t2tp import upstream
from t2tp.mesh.layout import Layout

# mesh-tensorflow itself, or t2tp's module, in which t2tp's operations replace some of the original.
mtf = upstream if args.engine == "placement" else mended

sizes = turn.sizes(args)
MESH_SHAPE = f"data:{args.data};model:{args.model}"
LAYOUT = "batch:data;heads:model;d_ff:model;vocab:model"
BATCH, LENGTH = mtf.Dimension("batch", sizes.batch), mtf.Dimension("length", sizes.length)
MEMORY = mtf.Dimension("memory_length", sizes.length)
D_MODEL, D_FF = mtf.Dimension("d_model", sizes.d_model), mtf.Dimension("d_ff", sizes.d_ff)
HEADS, D_KV = mtf.Dimension("heads", sizes.heads), mtf.Dimension("d_kv", sizes.d_kv)
VOCAB = mtf.Dimension("vocab", sizes.vocab)
POSITION = mtf.Dimension("position", sizes.length)
TOKENS = mtf.Shape([BATCH, LENGTH])
HIDDEN = TOKENS + D_MODEL
SHAPES = {
    "embedding": [VOCAB, D_MODEL],
    "positions": [POSITION, D_MODEL],
    "norm": [D_MODEL],
    "norm_1": [D_MODEL],
    "norm_2": [D_MODEL],
    "q": [D_MODEL, HEADS, D_KV],
    "k": [D_MODEL, HEADS, D_KV],
    "v": [D_MODEL, HEADS, D_KV],
    "out": [HEADS, D_KV, D_MODEL],
    "up": [D_MODEL, D_FF],
    "down": [D_FF, D_MODEL],
}
values = lm.initial_values(sizes)


def rms_norm(x, scale):
    mean_square = mtf.reduce_mean(mtf.square(x), reduced_dim=D_MODEL)
    return x * mtf.rsqrt(mean_square + 1e-6) * scale


def loss_fn(mesh, targets):
    w = {n: mtf.get_variable(mesh, n, mtf.Shape(SHAPES[n.split("/")[-1]])) for n in values}
    # Both engines can lower mesh-tensorflow's own gather.
    x = upstream.gather(w["embedding"], mtf.shift(targets, 1, LENGTH, wrap=False), VOCAB)
    x += mtf.replace_dimensions(w["positions"], POSITION, LENGTH)
    is_hidden = mtf.less(mtf.range(mesh, LENGTH, tf.int32), mtf.range(mesh, MEMORY, tf.int32))
    mask = mtf.cast(is_hidden, tf.float32) * -1e9
    for i in range(sizes.layers):
        y = rms_norm(x, w[f"{i}/norm_1"])
        q, k, v = (mtf.einsum([y, w[f"{i}/{n}"]], TOKENS + HEADS + D_KV) for n in "qkv")
        k, v = (mtf.replace_dimensions(t, LENGTH, MEMORY) for t in (k, v))
        logits = mtf.einsum([q, k], mtf.Shape([BATCH, HEADS, LENGTH, MEMORY])) * sizes.d_kv**-0.5
        attended = mtf.einsum([mtf.softmax(logits + mask, MEMORY), v], q.shape)
        x += mtf.einsum([attended, w[f"{i}/out"]], HIDDEN)
        y = rms_norm(x, w[f"{i}/norm_2"])
        x += mtf.einsum([mtf.relu(mtf.einsum([y, w[f"{i}/up"]], TOKENS + D_FF)), w[f"{i}/down"]])
    logits = mtf.einsum([rms_norm(x, w["norm"]), w["embedding"]], TOKENS + VOCAB)
    # mesh-tensorflow's loss accepts integer targets, and makes them one-hot.
    losses = mtf.layers.softmax_cross_entropy_with_logits(logits, targets, VOCAB)
    return mtf.reduce_mean(losses)


def adam(variable, gradient, step):
    m, v = (
        mtf.get_variable(
            variable.mesh,
            f"{variable.name}/{letter}",
            variable.shape,
            initializer=tf1.zeros_initializer(),
            trainable=False,
        )
        for letter in "mv"
    )
    new_m = lm.BETA1 * m + (1 - lm.BETA1) * gradient
    new_v = lm.BETA2 * v + (1 - lm.BETA2) * mtf.square(gradient)
    bias_1, bias_2 = (1 - mtf.exp(step * math.log(beta)) for beta in (lm.BETA1, lm.BETA2))
    rate = mtf.sqrt(bias_2) / bias_1 * lm.LEARNING_RATE
    update = rate * new_m / (mtf.sqrt(new_v) + lm.EPSILON)
    assign = [mtf.assign(x.operation, y) for x, y in ((m, new_m), (v, new_v))]
    return [*assign, mtf.assign(variable, variable.value - update)]


def train(mesh, targets, step):
    loss = loss_fn(mesh, targets)
    variables = mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    norm = mtf.sqrt(mtf.add_n([mtf.reduce_sum(mtf.square(g)) for g in gradients]))
    limit = mtf.constant(mesh, lm.CLIP_NORM, dtype=tf.float32)
    factor = limit / upstream.maximum(norm, limit)
    updates = [
        op for v, g in zip(variables, gradients, strict=True) for op in adam(v, g * factor, step)
    ]
    return loss, updates


def on_t2tp():
    def step_fn(mesh, features):
        step = mtf.cast(mesh.step, tf.float32) + 1.0
        return {"loss": train(mesh, features["targets"], step)[0]}

    feature = t2tp.Feature(TOKENS, tf.int32)
    program = t2tp.Program(step_fn, {"targets": feature}, mesh_shape=MESH_SHAPE, layout=LAYOUT)
    for name, value in values.items():
        variable = program.variables[name]
        for pnum in program.cluster.local_pnums:
            part = value[program.layout.slices(variable.spec.shape, pnum)]
            variable.slice_of(pnum).assign(part)
    batch = program.place({"targets": lm.targets(sizes)})
    steps = iter(range(1 << 30))
    return lambda: float(program(batch, step=next(steps))["loss"])


def on_placement():
    layout = Layout(MESH_SHAPE, LAYOUT)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    targets = mtf.import_tf_tensor(mesh, tf.constant(lm.targets(sizes)), shape=TOKENS)
    number = tf1.placeholder(tf.float32, [])
    step = mtf.import_tf_tensor(mesh, number, shape=mtf.Shape([]))
    loss, updates = train(mesh, targets, step)
    devices = [f"cpu:{i}" for i in range(layout.size)]
    impl = mtf.placement_mesh_impl.PlacementMeshImpl(layout.mesh_shape, layout.mtf_rules, devices)
    lowering = mtf.Lowering(graph, {mesh: impl})
    loss = lowering.export_to_tf_tensor(loss)
    run = tf.group(*[lowering.lowered_operation(op) for op in updates])
    # The devices share the cores equally, as in our engine.
    config = tf1.ConfigProto(device_count={"CPU": layout.size})
    config.intra_op_parallelism_threads = turn.share_of_cores(layout.size)
    session = tf1.Session(config=config)
    session.run(tf1.global_variables_initializer())
    for master in tf1.global_variables():
        if master.op.name in values:
            master.load(values[master.op.name], session)
    session.run(lowering.copy_masters_to_slices())
    steps = iter(range(1, 1 << 30))
    return lambda: float(session.run([loss, run], {number: next(steps)})[0])


if args.engine == "placement":
    with tf.Graph().as_default():
        turn.take_turns(on_placement(), version=f"tensorflow {tf.__version__}")
else:
    turn.take_turns(on_t2tp(), version=f"tensorflow {tf.__version__}")
