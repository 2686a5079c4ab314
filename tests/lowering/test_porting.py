"""The ported program of docs/porting.md works with weights that mesh-tensorflow saved."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from t2tp import upstream
from tests.page_blocks import DOCS, check_shown

EXAMPLE = DOCS.parent / "examples" / "ported_program.py"


def run_upstream(checkpoint: str) -> float:
    """Builds the model on mesh-tensorflow's engine and saves it; returns its loss."""
    source = EXAMPLE.read_text()
    dims = re.search(r"^batch_dim.*?\n\n", source, re.M | re.S)[0]
    model = re.search(r"^def model\(.*?\n\n\n", source, re.M | re.S)[0]
    names = {"mtf": upstream}
    exec(dims + model, names)
    images = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
    with tf.Graph().as_default(), tf1.Session() as session:
        graph = upstream.Graph()
        mesh = upstream.Mesh(graph, "mesh")
        _, loss = names["model"](mesh, images, images[:, :4].argmax(-1).astype("int32"))
        impl = upstream.placement_mesh_impl.PlacementMeshImpl("rows:1", "", ["cpu:0"])
        lowering = upstream.Lowering(graph, {mesh: impl})
        fetched = lowering.export_to_tf_tensor(loss)
        session.run(tf1.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        tf1.train.Saver().save(session, checkpoint, write_meta_graph=False)
        return float(session.run(fetched))


@pytest.mark.ci_only
@pytest.mark.slow
def test_the_example_goes_on_from_a_checkpoint_of_mesh_tensorflow(tmp_path):
    checkpoint = str(tmp_path / "model.ckpt")
    wanted = run_upstream(checkpoint)
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE), checkpoint], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", ended.stdout)]
    assert losses[0] == pytest.approx(wanted, abs=2e-5)
    assert len(losses) == 5 and losses[-1] < losses[0]
    missing = re.search(r"not in the checkpoint: (.*)", ended.stdout)[1]
    assert "hidden" in missing and "'hidden/kernel'" not in missing  # the optimizer's variables


def test_the_page_shows_what_is_in_the_example():
    check_shown("porting.md", EXAMPLE.read_text())
