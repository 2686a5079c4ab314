"""The reference: mesh-tensorflow's own engine, which builds each operation once per device."""

from unittest import mock

import tensorflow as tf
import tensorflow.compat.v1 as tf1

import t2tp
from t2tp import mtf, upstream
from t2tp.mesh.layout import Layout

# mesh-tensorflow's operations, which its engine can lower, in place of ours.
REPLACED = ("cast", "softmax", "log_softmax", "reduce_logsumexp")
LOWERED = {name: getattr(upstream, name) for name in REPLACED}


def run(step_fn, features, mesh_shape="", layout=""):
    """Returns the outputs of `step_fn(mesh, features)` on `PlacementMeshImpl`."""
    laid_out = Layout(mesh_shape, layout)
    with tf.Graph().as_default(), tf1.Session() as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        mesh.step = mtf.constant(mesh, 0, dtype=tf.int64)
        inputs = {
            name: mtf.import_tf_tensor(mesh, value, shape=shape)
            for name, (shape, value) in features.items()
        }
        with mock.patch.multiple(mtf, **LOWERED):
            outputs = step_fn(mesh, inputs)
        impl = mtf.placement_mesh_impl.PlacementMeshImpl(
            laid_out.mesh_shape, laid_out.mtf_rules, ["cpu:0"] * laid_out.size
        )
        lowering = mtf.Lowering(graph, {mesh: impl})
        fetches = {name: lowering.export_to_tf_tensor(t) for name, t in outputs.items()}
        session.run(tf1.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        return session.run(fetches)


def program_and_outputs(step_fn, features, mesh_shape="", layout="", step=0):
    """Returns a program of `step_fn(mesh, features)` on our engine, and its outputs."""
    kinds = {name: t2tp.Feature(shape, value.dtype) for name, (shape, value) in features.items()}
    program = t2tp.Program(step_fn, kinds, mesh_shape=mesh_shape, layout=layout)
    return program, dict(program({name: value for name, (_, value) in features.items()}, step))


def run_ours(step_fn, features, mesh_shape="", layout=""):
    """Returns the outputs of `step_fn(mesh, features)` in a program on our engine."""
    return program_and_outputs(step_fn, features, mesh_shape, layout)[1]
