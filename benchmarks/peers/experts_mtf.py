"""A mixture of experts in mesh-tensorflow: its own layer on its own engine, PlacementMeshImpl."""

from __future__ import annotations

import turn

args = turn.arguments()

import importlib.util
import sys
import types
from pathlib import Path

import tensorflow as tf
import tensorflow.compat.v1 as tf1
from layer_sizes import EXPERTS, LEARNING_RATE

from t2tp import upstream  # makes mesh-tensorflow work with current TensorFlow
from t2tp.mesh.layout import Layout


def its_module(name: str):
    """Imports a file of mesh_tensorflow.transformer.

    The package itself cannot be imported any more, because it requires tf.estimator and TPU
    configuration. The file needs only the package's base class of layers.
    """
    package = types.ModuleType("mesh_tensorflow.transformer")
    package.transformer = types.SimpleNamespace(TransformerLayer=object)
    sys.modules[package.__name__] = package
    path = Path(upstream.ops.__file__).parent / "transformer" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


moe = its_module("moe")
sizes = EXPERTS[args.size]
layout = Layout(
    f"data:{args.data};model:{args.model}", "batch:data;experts:data;expert_hidden:model"
)
# mesh-tensorflow's capacity factor assumes one expert per token. With train=False, nothing is
# dropped at random, not even second choices; gradients are the same as in training.
hparams = moe.MoE1D(
    num_experts=sizes.experts,
    hidden_size=sizes.d_ff,
    group_size=sizes.length,
    capacity_factor_eval=2 * sizes.capacity_factor,
    second_policy_eval="all",
)._hparams
VARIABLES = {"top_2_gating/kernel": "router", "wi/kernel": "up", "wo/kernel": "down"}


def build():
    graph = upstream.Graph()
    mesh = upstream.Mesh(graph, "mesh")
    shape = upstream.Shape(
        [
            upstream.Dimension("batch", sizes.batch),
            upstream.Dimension("length", sizes.length),
            upstream.Dimension("d_model", sizes.d_model),
        ]
    )
    inputs, targets = (
        upstream.import_tf_tensor(mesh, tf.constant(value), shape=shape) for value in sizes.data()
    )
    y, _ = moe.transformer_moe_layer_v1(
        inputs,
        shape.dims[-1],
        hparams,
        train=False,
        variable_dtype=upstream.VariableDType(),
        layout=layout.mtf_rules,
        mesh_shape=layout.mesh_shape,
    )
    loss = upstream.reduce_mean(upstream.square(y - targets))
    variables = graph.trainable_variables
    gradients = upstream.gradients([loss], [v.outputs[0] for v in variables])
    updates = [
        upstream.assign_sub(v, LEARNING_RATE * g) for v, g in zip(variables, gradients, strict=True)
    ]
    devices = [f"cpu:{i}" for i in range(layout.size)]
    impl = upstream.placement_mesh_impl.PlacementMeshImpl(
        layout.mesh_shape, layout.mtf_rules, devices
    )
    lowering = upstream.Lowering(graph, {mesh: impl})
    run = tf.group(*[lowering.lowered_operation(op) for op in updates])
    loss = lowering.export_to_tf_tensor(loss)
    # The devices share the cores equally, as in our engine.
    config = tf1.ConfigProto(device_count={"CPU": layout.size})
    config.intra_op_parallelism_threads = turn.share_of_cores(layout.size)
    session = tf1.Session(config=config)
    session.run(tf1.global_variables_initializer())
    values = sizes.initial_values()
    for master in tf1.global_variables():
        master.load(values[VARIABLES[master.op.name]], session)
    session.run(lowering.copy_masters_to_slices())
    return lambda: float(session.run([loss, run])[0])


with tf.Graph().as_default():
    turn.take_turns(build(), version=f"tensorflow {tf.__version__}")
