"""Training with a teacher: its weights are read, frozen and never saved."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from t2tp import checkpoint, problems
from t2tp.planner import ClusterFile
from t2tp.trainer.errors import UsageError
from t2tp.trainer.layout_check import check_run_layout
from t2tp.trainer.other_run import OtherRun
from t2tp.trainer.planning import request
from tests.huggingface.tiny_files import write_tiny_llama
from tests.trainer.command import call
from tests.trainer.tiny_experiment import experiment
from tests.trainer.toy_estimator import losses

STUDENT = "d_model=16,d_ff=32,num_heads=2,learning_rate_schedule=constant"


def trained(run, data_dir, changes="", **settings):
    """Trains, and returns the losses of all steps of the run."""
    experiment(run, data_dir, changes, **settings).train()
    return losses(run)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, data_dir):
    run = tmp_path_factory.mktemp("teacher") / "run"
    # The tables have more rows than there are tokens, and other rows than the student's.
    trained(run, data_dir, "vocab_size=600,ema_decay=0.5,layer_prepostprocess_dropout=0.2")
    return run


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory, data_dir, teacher):
    """Returns a function that trains a student on one device, once for all tests."""

    @functools.cache
    def losses_of(student):
        run = tmp_path_factory.mktemp("one") / "run"
        return trained(run, data_dir, student, teacher=str(teacher))

    return losses_of


def test_a_teacher_of_no_weight_changes_nothing(tmp_path, data_dir, teacher):
    alone = trained(tmp_path / "alone", data_dir, STUDENT)
    taught = trained(
        tmp_path / "taught", data_dir, f"{STUDENT},distillation_weight=0", teacher=str(teacher)
    )
    np.testing.assert_allclose(taught, alone, rtol=1e-6)


def test_a_model_has_nothing_to_learn_from_itself_without_dropout(tmp_path, data_dir, teacher):
    found = trained(
        tmp_path / "same",
        data_dir,
        "distillation_weight=1,weight_decay=0,layer_prepostprocess_dropout=0",
        teacher=str(teacher),
        warm_start_from=str(teacher),
    )
    assert found == pytest.approx([0] * len(found), abs=1e-5)


STAGES = "mesh_shape=stage:2,layout=layers:stage,microbatches=2"
# Changes of the student, and the relative tolerance.
SUMS = [
    pytest.param("exact_sums=0", 1e-5, id="rounded"),
    pytest.param("d_kv=16,exact_sums=8", 0, marks=pytest.mark.ci_only, id="exact"),
]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["mesh_shape=data:2;model:2", "microbatches=2", STAGES])
@pytest.mark.parametrize(("sums", "rtol"), SUMS)
def test_every_layout_learns_the_same_and_no_checkpoint_has_the_teacher(
    tmp_path, data_dir, teacher, on_one_device, mesh, sums, rtol
):
    student = f"{STUDENT},num_hidden_layers=2,{sums}"
    run = tmp_path / "run"
    found = trained(run, data_dir, f"{student},{mesh}", teacher=str(teacher))
    np.testing.assert_allclose(found, on_one_device(student), rtol=rtol)
    names = checkpoint.Checkpoint(checkpoint.last_finished(run / "checkpoints").path).shapes()
    assert not [name for name in names if name.startswith("teacher")]
    assert any(name.startswith("layer_00") or "embedding" in name for name in names)


def test_a_pipeline_with_a_teacher_is_explained_and_checked(tmp_path, data_dir, teacher):
    changes = f"{STUDENT},num_hidden_layers=2,{STAGES}"
    run = experiment(tmp_path / "run", data_dir, changes, teacher=str(teacher))
    shown = str(run.explain())
    # The teacher's only layer is on one of the stages, and only its output is sent forward.
    assert len(re.findall(r"stage \d: 2 layers, layer_\d\d, teacher/layer_00", shown)) == 1
    sizes = re.findall(r"to the next stage, or back: ([\d,]+) or ([\d,]+) bytes", shown)
    there, back = (int(size.replace(",", "")) for size in sizes[0])
    assert there > back
    assert check_run_layout(run.spec).check.agrees


CASES = [
    ("batch:data", "batch:data"),
    ("d_ff:data;heads:data;vocab:data", "d_ff:data;heads:data;vocab:data"),
    # The teacher has one layer, which is in one stage.
    ("layers:data", "batch:data"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "of_teacher"), CASES)
def test_a_plan_has_the_weights_of_both_models(teacher, layout, of_teacher):
    hparams = OtherRun.open("teacher", str(teacher)).hparams
    student = {"mesh_shape": "data:2", "num_hidden_layers": 4, "microbatches": 2}

    def weights(changes, **settings):
        wanted = request("transformer_lm", hparams.with_values(changes), 600, **settings)
        return wanted.plan(ClusterFile.load("h100")).memory["weights"]

    alone = weights(student | {"layout": layout})
    own = weights({"mesh_shape": "data:2", "layout": of_teacher})
    both = weights(student | {"layout": layout}, teacher=str(teacher))
    assert both - alone == own - 4  # Both models have one number of the step.


def test_rows_for_padding_are_left_out_of_the_comparison(tmp_path, data_dir, teacher):
    changes = f"{STUDENT},vocab_size=580,distillation_weight=1,weight_decay=0"
    tables = []
    for rate in (0, 0.1):
        run = tmp_path / str(rate)
        more = f"{changes},learning_rate_constant={rate}"
        trained(run, data_dir, more, teacher=str(teacher), train_steps=2)
        saved = checkpoint.Checkpoint(checkpoint.last_finished(run / "checkpoints").path)
        (name,) = [name for name in saved.shapes() if name.endswith("embedding")]
        tables.append(tf.train.load_checkpoint(saved.prefix).get_tensor(saved.stored_name(name)))
    moved = np.any(tables[0] != tables[1], axis=1)
    tokens = len(moved) - np.argmax(moved[::-1])
    assert 500 < tokens < 580 <= len(moved)


def test_a_resumed_run_goes_on_with_its_teacher(tmp_path, data_dir, teacher):
    whole = trained(tmp_path / "whole", data_dir, STUDENT, teacher=str(teacher))
    run = tmp_path / "run"
    trained(run, data_dir, STUDENT, teacher=str(teacher), train_steps=3)
    assert trained(run, data_dir, STUDENT, teacher=str(teacher)) == whole


def test_a_hugging_face_directory_teaches_as_the_run_of_it(tmp_path):
    write_tiny_llama(tmp_path / "hf", num_key_value_heads=2, tie_word_embeddings=False)
    assert call("t2tp_convert", from_hf=tmp_path / "hf", output_dir=tmp_path / "base") == 0
    (tmp_path / "texts.txt").write_text("the cat sat on the mat\n" * 40)
    problem = "languagemodel_textfiles:tiny"
    options = f"files={tmp_path / 'texts.txt'},documents=lines,vocabulary_from={tmp_path / 'hf'}"
    problems.find(problem, options).prepare(tmp_path / "data")
    by_run, directly = (
        trained(
            tmp_path / f"by_{name}",
            tmp_path / "data",
            f"{STUDENT},mesh_shape=data:2;model:2",
            problem=problem,
            teacher=str(tmp_path / name),
        )
        for name in ("base", "hf")
    )
    assert directly == by_run


def test_a_teacher_is_a_decoder_with_the_vocabulary_of_the_data(tmp_path, data_dir):
    write_tiny_llama(tmp_path / "llama")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text('{"model_type": "bert"}')
    for name, message in (
        ("bert", "has the model transformer_encoder: name a decoder"),
        ("llama", "llama must have the vocabulary of the data: .*vocabulary_from=/"),
        ("", "neither a run, nor a checkpoint of a run, nor a Hugging Face"),
    ):
        with pytest.raises(UsageError, match=message):
            trained(tmp_path / "run", data_dir, STUDENT, teacher=str(tmp_path / name))
