"""The language model matches its reference in any layout."""

import numpy as np
import pytest

import t2tp
from tests.models.small_lm import LENGTH, VOCAB_SIZE, make_batch, one_document_a_row
from tests.models.small_transformers import FAMILIES, assert_close, loss_program

LM = FAMILIES["lm"]


def test_a_loss_in_chunks_gives_the_same_gradients():
    """The last chunk is shorter, and the mesh does not divide the vocabulary."""
    wanted = loss_program(LM, loss_chunk=-1)(make_batch())
    program = loss_program(LM, "data:2;model:4", loss_chunk=7, recompute="layer")
    activations = [each.tensor.name for each in t2tp.explain(program).data.activations]
    assert "projected_cross_entropy (temporary)" in activations
    assert_close(program(make_batch()), wanted)


def test_a_batch_of_padding_has_no_loss():
    padding = one_document_a_row(np.zeros_like(make_batch()["targets"]))
    values = loss_program(LM, "data:2", training=False, with_gradients=False)(padding)
    assert values["loss"] == values["nll"] == values["tokens"] == values["correct"] == 0


def test_packed_documents_cost_what_they_cost_alone():
    targets = np.random.default_rng(1).integers(1, VOCAB_SIZE, (8, LENGTH), np.int32)
    alone = np.zeros([2, *targets.shape], np.int32)
    alone[0, :, :5], alone[1, :, :7] = targets[:, :5], targets[:, 5:]
    sizes = [5, 7]
    packed = {
        "targets": targets,
        "targets_segmentation": np.tile(np.repeat([1, 2], sizes), (8, 1)),
        "targets_position": np.tile(np.concatenate([np.arange(n) for n in sizes]), (8, 1)),
    }
    program = loss_program(LM, "data:2;model:2", training=False, with_gradients=False)
    separate = sum(float(program(one_document_a_row(rows))["nll"]) for rows in alone)
    assert float(program(packed)["nll"]) == pytest.approx(separate, rel=1e-6)
    together = packed | {"targets_segmentation": np.ones_like(targets)}
    assert float(program(together)["nll"]) != pytest.approx(separate, rel=1e-3)


def test_a_length_without_positions_is_refused():
    with pytest.raises(ValueError, match="length 12, .* has positions for context_length=8"):
        loss_program(LM, max_length=8)
