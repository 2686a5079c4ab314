"""Steps that XLA compiles: a GPU's host never waits for a condition or for the end of a loop."""

import re

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp.lowering.mesh_impl import Backend
from t2tp.ops.attention import cudnn
from t2tp.program.segments import segment_features
from tests.models.any_model import small_model
from tests.optim.sharded_programs import training_step

GPU = Backend(on_cpu=False, compiles_regions=False, compiles_step=True)


def step_of(family: str, **changes: object) -> t2tp.Program:
    """Returns the program of a family's training step."""
    model, _, features = small_model(family, **changes)
    return t2tp.Program(training_step(model), features, xla=True)


def hlo_of(program: t2tp.Program, stage: str) -> str:
    """Returns the HLO of a program."""
    run = program.trace()
    pnum, span, _, batches = run.structured_input_signature[0]
    given = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), (pnum, span, batches))
    variables = [v.slices[0] for v in program.variables]
    # TensorFlow prints the code of a function without variables among its arguments.
    function = tf.function(
        lambda pnum, span, batches: run(pnum, span, variables, batches),
        jit_compile=True,
        autograph=False,
    )
    return function.experimental_get_compiler_ir(*given)(stage)


def check(hlo: str) -> int:
    """Checks that the host can run ahead; returns the number of loops."""
    assert " conditional(" not in hlo
    loops = [line for line in hlo.splitlines() if re.search(r" while\(", line)]
    assert all("known_trip_count" in line for line in loops), loops
    return len(loops)


# Other families have no operation that these lack.
FAMILIES = ["lm", "moe_encdec", "moe_masked", "bert_classes", "vit", "resnet", "images"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_no_step_has_a_condition(family):
    check(hlo_of(step_of(family, on_nonfinite="skip", skip_step_sigma=3.0), "optimized_hlo"))


CHANGES = [{"microbatches": 2, "activation_dtype": "float16"}, {"loss_chunk": 8}]


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES)
def test_loops_have_a_known_number_of_iterations(changes):
    assert check(hlo_of(step_of("lm", **changes), "optimized_hlo"))


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_host_selects_the_program_by_the_number_of_segments(microbatches, monkeypatch):
    monkeypatch.setattr(cudnn, "compute_capability", lambda: (9, 0))
    options = {"activation_dtype": "bfloat16", "microbatches": microbatches}
    program = step_of("lm", attention_dropout=0.0, on_nonfinite="skip", **options)
    program.segment_features = segment_features(program.graph()[0].operations)
    assert program.segment_features == ["targets_segmentation"]
    program._set_target(GPU)
    batch = small_model("lm")[1]
    length = batch["targets"].shape[1]
    for numbers, kind, count in (
        (np.ones(length), "CAUSAL", 1),
        (np.arange(length) // (length // 3), "PADDING_CAUSAL", 4),
        (np.arange(length) % 2, "ScaleBias", 0),
    ):
        rows = np.broadcast_to(numbers.astype(np.int32), batch["targets"].shape)
        placed = program.place({**batch, "targets_segmentation": rows})
        assert placed.max_segments == count
        hlo = hlo_of(program._for_segments(count), "hlo")
        assert " conditional(" not in hlo
        assert ("ScaleBias" in hlo) == (not count)
        assert f'"mask_type": "{kind}"' in hlo or kind == "ScaleBias"
        assert f'"max_seg_per_batch": {max(1, count)}' in hlo
