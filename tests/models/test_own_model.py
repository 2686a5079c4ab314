"""The example model of docs/new_model.md works as the page says."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import mtf, registry
from t2tp.problems.metrics import METRICS
from t2tp.problems.user_dir import import_user_dir
from tests.page_blocks import blocks, check_shown
from tests.page_commands import run as run_command

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "my_model"
TARGETS = np.array([[5, 7, 6, 5, 9, 1], [8, 8, 3, 1, 4, 1], [2, 1, 0, 0, 0, 0], [9, 9, 9, 9, 9, 9]])
SEGMENTS = np.array([[1] * 6, [1, 1, 1, 1, 2, 2], [1, 1, 0, 0, 0, 0], [1] * 6])


@pytest.fixture(scope="module")
def model():
    known = set(METRICS)
    import_user_dir(EXAMPLE)
    hparams = registry.hparams("ngram_lm_tiny")
    yield registry.model("ngram_lm")(hparams, {"targets": 10})
    for name in METRICS.keys() - known:  # Other tests in this process iterate over all metrics.
        del METRICS[name]


def run(step, mesh_shape="", layout=""):
    features = {
        name: t2tp.Feature("batch:4;length:6", tf.int32)
        for name in ("targets", "targets_segmentation")
    }
    program = t2tp.Program(step, features, mesh_shape=mesh_shape, layout=layout)
    return dict(program({"targets": TARGETS, "targets_segmentation": SEGMENTS}))


@pytest.mark.parametrize("training", [True, False])
def test_its_loss_is_the_same_on_any_mesh(model, training):
    def step(mesh, features):
        out = model.loss(mesh, features, training)
        return {"loss": out.loss, **out.metrics}

    one = run(step)
    split = run(step, "data:2;model:2", model.hparams.layout)
    for name, value in one.items():
        np.testing.assert_allclose(split[name], value, rtol=1e-5, err_msg=name)
    assert one["tokens"] == (SEGMENTS > 0).sum()


def test_its_steps_give_the_logits_of_its_loss(model):
    def step(mesh, features):
        targets = features["targets"]
        length = targets.shape.dims[-1]
        one_text = mtf.ones(mesh, targets.shape, tf.int32)
        features = {"targets": targets, "targets_segmentation": one_text}
        nll = model.loss(mesh, features, training=False).metrics["nll"]
        prefix = mtf.slice(targets, 0, 2, "length")
        prefix = mtf.rename_dimension(prefix, "length", "prefix_length")
        state = model.prefill(mesh, {"prefix": prefix}, length)
        total = mtf.zeros(mesh, [], tf.float32)
        for place in range(length.size):
            before = mtf.gather(targets, place - 1, length)
            logits, state = model.decode_step(mesh, before, mtf.zeros_like(before) + place, state)
            vocab = logits.shape[-1]
            here = mtf.one_hot(mtf.gather(targets, place, length), vocab)
            total -= mtf.reduce_sum(mtf.log_softmax(logits, vocab) * here)
        return {"nll": nll, "by_steps": total}

    values = run(step)
    np.testing.assert_allclose(values["by_steps"], values["nll"], rtol=1e-5)


def test_the_page_shows_what_is_in_the_file():
    """Ignores types, and lines that the page says it leaves out."""
    check_shown("new_model.md", (EXAMPLE / "ngram_lm.py").read_text(), ("def ", "..."))


@pytest.mark.slow
@pytest.mark.ci_only
def test_every_command_of_the_page_works(tmp_path):
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    shell = "".join(blocks("new_model.md", "sh")).replace("\\\n", " ")
    said = ""
    for number, line in enumerate(shell.splitlines()):
        said += run_command(shlex.split(line), tmp_path, number, {"--trials=2": "--trials=1"})
    perplexity = re.search(r"evaluation at step 100 .*perplexity ([\d.]+)  surprises 0\.", said)
    assert perplexity and float(perplexity[1]) < 50
    assert (tmp_path / "decoded.txt").read_text().count("\n") == 1
