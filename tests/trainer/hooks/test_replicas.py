"""A training whose devices disagree stops before it saves, and names variable and device."""

import numpy as np
import pytest
import tensorflow as tf

import t2tp
from t2tp import checkpoint, mtf
from t2tp.trainer.hooks.replicas import ReplicaHook, ReplicaMismatchError
from t2tp.trainer.model_fn import ModeKeys
from tests.trainer import toy
from tests.trainer.hooks.events import read_log
from tests.trainer.toy_estimator import At, estimator


class WrongOn2(t2tp.Operation):
    """Copies a tensor; from step 2 on, processor 2 computes a wrong element."""

    def __init__(self, x: mtf.Tensor) -> None:
        super().__init__([x, x.mesh.step], name="faulty")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering):
        x, step = map(lowering.slice, self.inputs)
        pnum = lowering.mesh_impl(self).laid_out_pnum().slice
        error = tf.cast((pnum == 2) & (step >= 2), x.dtype) * 1e-4
        lowering.set_slice(self.outputs[0], x + error * tf.one_hot(0, x.shape[-1]))


REFUSED = [
    ("data", "x", r"on processor 2 \(.*\) from processors 0, 1, 3 "),
    ("both", "x", r"on processor 2 \(.*\) from processors 0, 1, 3 "),
    ("both", "y", r"between processor 0 \(.*\) and processor 2 \("),  # `model` splits it.
]


@pytest.mark.parametrize(("mesh", "feature", "said"), REFUSED)
def test_a_processor_that_computes_wrongly_is_named(tmp_path, mesh, feature, said):
    """Its gradient is summed with those of others, so all copies of the weight stay equal."""

    def model_fn(mesh, features, mode, hparams):
        wrong = {feature: WrongOn2(features[feature]).outputs[0]}
        return toy.model_fn(mesh, {**features, **wrong}, mode, hparams)

    trained = estimator(tmp_path, mesh, model_fn=model_fn, check_replicas_every=1)
    said = f"after step 3 .* the same rows: activation 'faulty' differs {said}"
    with pytest.raises(ReplicaMismatchError, match=said):
        trained.train(toy.inputs(), 12)


def corrupted(directory, step, **settings):
    """Returns an estimator, and a hook that changes processor 3's copy of a slice after a step."""
    trained = estimator(directory, check_replicas_every=3, **settings)

    def corrupt():
        part = trained._variables["w"].slice_of(3)
        part.assign_add(0 * part + 1e-4)

    return trained, At(step, corrupt)


def test_it_stops_at_the_next_check(tmp_path):
    trained, hook = corrupted(tmp_path, 5, save_checkpoints_steps=100, log_json=str(tmp_path / "l"))
    said = (
        r"after step 6 devices hold different .* \(they agreed after step 3\): variable 'w' differs"
        r" between processor 1 \(.*CPU:1\) and processor 3 \(.*CPU:3\)"
        r".* Replayed from step 0, the wrong values are on processor 3 \(.*CPU:3\)\."
    )
    with pytest.raises(ReplicaMismatchError, match=said):
        trained.train(toy.inputs(), 12, [hook])
    assert checkpoint.all_steps(tmp_path / "checkpoints") == []
    assert [event["step"] for event in read_log(tmp_path / "l", "replicas_differ")] == [6]


def test_a_checkpoint_between_two_checks_is_checked(tmp_path):
    trained, hook = corrupted(tmp_path, 7)
    with pytest.raises(ReplicaMismatchError, match="after step 8 .* agreed after step 6"):
        trained.train(toy.inputs(), 12, [hook])
    assert checkpoint.all_steps(tmp_path / "checkpoints") == [4]


def test_a_sound_training_goes_on(tmp_path):
    estimator(tmp_path, check_replicas_every=1).train(toy.inputs(), 6)
    assert checkpoint.all_steps(tmp_path / "checkpoints") == [4, 6]


FAULTY = [0, 1, 2, *(pytest.param(n, marks=pytest.mark.ci_only) for n in range(3, 8))]


@pytest.mark.parametrize("number", FAULTY)
def test_a_flipped_bit_is_found_and_its_device_named(tmp_path, number):
    """With four copies, the majority is right; with two copies, a replay shows which is wrong."""
    random = np.random.default_rng(number)
    pnum, bit, step = random.integers(4), random.integers(32), 5 + random.integers(3)
    trained = estimator(tmp_path, ["data", "both"][number % 2])
    variables = trained.build(ModeKeys.TRAIN, toy.inputs().features).variables

    def flip():
        part = variables["w"].slice_of(pnum)
        value = part.numpy().copy()
        value.view(np.uint32).flat[random.integers(value.size)] ^= np.uint32(1 << bit)
        part.assign(value)

    said = rf"after step {step} .*(differs on|wrong values are on) processor {pnum} \("
    with pytest.raises(ReplicaMismatchError, match=said):
        trained.train(toy.inputs(), 12, [At(step, flip), ReplicaHook(1, variables)])
