"""Replays one step of a run, to find the examples that caused a bad step.

The seed and the step determine the batch, so the run need not save it. The variables are restored
from the latest checkpoint before the step, and the steps in between are repeated.
"""

import contextlib
import fnmatch
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.object_store.mirror import mirror_of
from t2tp.optim.nonfinite import first_nonfinite
from t2tp.optim.per_row import RowsMixedError, row_losses_and_norms
from t2tp.program.program import Feature, Program
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.hooks.reports import scalars_in
from t2tp.trainer.inputs.batch_size import sequences_per_batch
from t2tp.trainer.inputs.inputs import Batch, features_of_batch
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.processes import multiprocess
from t2tp.trainer.references import References
from t2tp.trainer.run_spec import RunSpec
from t2tp.trainer.run_yaml import MESH

_EVENTS = "events.out.tfevents.*"
_TEXT_FEATURES = ("inputs", "targets")

# A device computes the gradients of several rows at once, if they have at most this number of
# elements in total: 1 GiB in float32.
_MOST_AT_ONCE = 1 << 28


@dataclass(frozen=True)
class ReplayedExample:
    """A row of the step's batch.

    Attributes:
      row: index of the row in the batch.
      loss: loss of this row alone, without dropout.
      gradient_norm: norm of the gradient of this loss w.r.t. all trainable variables.
      text: the row as text; empty if the problem is not about text.
    """

    row: int
    loss: float
    gradient_norm: float
    text: str


@dataclass(frozen=True)
class ReplayedStep:
    """A replayed step.

    Attributes:
      step: number of the step, from 1.
      begun_from: step of the checkpoint that the replay started from; 0: the initial values.
      scalars: the step's `loss`, `gradient_norm` and other reported scalars.
      examples: the rows, the largest gradient norm first; non-finite norms come before all others.
      logged: loss and gradient norm from the run's TensorBoard events; empty if the step was not
        reported, or rows were left out.
      first_nonfinite: name of the step's first non-finite tensor, if there is one.
      updates: variable -> norm of its update / norm of the variable, the largest first.
    """

    step: int
    begun_from: int
    scalars: Mapping[str, float]
    logged: Mapping[str, float]
    examples: Sequence[ReplayedExample]
    first_nonfinite: str | None
    updates: Mapping[str, float]

    @property
    def differing(self) -> dict[str, float]:
        """Relative differences of logged scalars that the replay did not reproduce exactly."""
        return {
            name: abs(self.scalars[name] - value) / (abs(value) or 1.0)
            for name, value in self.logged.items()
            if repr(value) != repr(self.scalars[name])
        }


def replay(spec: RunSpec, step: int, without_rows: Sequence[int] = ()) -> ReplayedStep:
    """Replays a step of a run; writes no files.

    On the run's own mesh, and on any mesh with `exact_sums`, the replayed values equal the run's
    values bit for bit. On other meshes, and on a GPU if the run was not `deterministic`, they are
    equal up to rounding. The replay itself is deterministic, unless the config says otherwise.

    Args:
      spec: the run, on a mesh without stages.
      step: the step, from 1.
      without_rows: rows of the batch to leave out.

    Raises:
      UsageError: there are several processes, the mesh has stages, the mesh splits the batch of a
        model that mixes rows, or the batch lacks one of `without_rows`.
    """
    _check(spec, step)
    spec = _with_batch_of_run(spec)
    is_deterministic = spec.config.deterministic is not False
    spec = replace(spec, config=replace(spec.config, deterministic=is_deterministic))
    estimator = spec.make_estimator()
    inputs = spec.training_inputs()
    References(spec, estimator).set(spec.problem.splits[0], training=True)
    begun_from, stream = estimator.rewind(inputs, step - 1)
    batch, rows = _without(stream[step - 1], without_rows)
    features = features_of_batch(batch, inputs.features)
    examples = _examples(spec, estimator, batch, rows, inputs.features)
    magnitudes = estimator.magnitude_program(features)(batch, step=step - 1)
    program = estimator.build(ModeKeys.TRAIN, features)
    before = _values(program.variables)
    outputs = program(batch, step=step - 1)
    scalars = scalars_in(outputs)
    after, norm = _values(program.variables), np.linalg.norm
    updates = {x: float(norm(after[x] - old) / (norm(old) or 1.0)) for x, old in before.items()}
    return ReplayedStep(
        step,
        begun_from,
        scalars,
        {} if without_rows else _logged(spec.config.output_dir, step),
        examples,
        first_nonfinite(magnitudes),
        dict(sorted(updates.items(), key=lambda each: (math.isfinite(each[1]), -each[1]))),
    )


def _check(spec: RunSpec, step: int) -> None:
    multiprocess.check_single(spec.config, "a replay")
    if step < 1:
        raise UsageError(f"--step={step}: steps are counted from 1")
    if step > spec.train_steps:
        raise UsageError(f"--step={step}: the run has {spec.train_steps} steps")
    if spec.layout.num_stages > 1:
        raise UsageError(
            f"{spec.layout} has stages, and cannot compute gradients of single rows: choose other"
            " axes, or none (--mesh_shape=)"
        )


def _with_batch_of_run(spec: RunSpec) -> RunSpec:
    """Returns the spec with the run's global batch size in sequences.

    In this unit, the batch size does not depend on the mesh of the replay.
    """
    hparams = (spec.saved or spec).hparams
    in_run = spec.with_hparams({name: hparams.get(name) for name in MESH})
    rows = sequences_per_batch(in_run.hparams, in_run.layout)
    return spec.with_hparams({"batch_size": rows, "batch_size_unit": "sequences_per_batch"})


def _logged(output_dir: str, step: int) -> dict[str, float]:
    """Reads the loss and the gradient norm of a step from the run's TensorBoard events.

    If the step was repeated after a restart, the last report counts.
    """
    logged: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        mirror = mirror_of(output_dir)
        if mirror is not None:  # Mirrors do not download events by themselves.
            for name in fnmatch.filter(mirror.store.list(), _EVENTS):
                mirror.store.get(name, Path(scratch, name))
        directory = Path(output_dir if mirror is None else scratch)
        for path in sorted(directory.glob(_EVENTS), key=lambda p: p.name):
            # A killed process may have left an incomplete record at the end.
            with contextlib.suppress(tf.errors.DataLossError):
                for record in tf.data.TFRecordDataset(str(path)):
                    event = tf.compat.v1.Event.FromString(record.numpy())
                    for value in event.summary.value:
                        if event.step == step and value.tag in ("loss", "gradient_norm"):
                            logged[value.tag] = float(tf.make_ndarray(value.tensor))
    return logged


def _without(batch: Batch, left_out: Sequence[int]) -> tuple[dict[str, np.ndarray], list[int]]:
    """Returns the batch as arrays without some rows, and the indices of the remaining rows."""
    count = next(iter(batch.values())).shape[0]
    unknown = [row for row in left_out if not 0 <= row < count]
    if unknown:
        raise UsageError(f"there is no row {unknown[0]}: the batch has rows 0 to {count - 1}")
    rows = [row for row in range(count) if row not in left_out]
    if not rows:
        raise UsageError(f"no row is left of the batch's {count}")
    whole = {name: x[(slice(None),) * len(x.shape)] for name, x in batch.items()}
    return {name: np.asarray(x)[rows] for name, x in whole.items()}, rows


def _examples(
    spec: RunSpec,
    estimator: Estimator,
    batch: Mapping[str, np.ndarray],
    rows: Sequence[int],
    features: Mapping[str, Feature],
) -> list[ReplayedExample]:
    """Computes loss and gradient norm of each single row, and decodes the row's text."""
    program, at_once = _row_program(spec, estimator, batch, features)
    losses: list[float] = []
    norms: list[float] = []
    for begin in range(0, len(rows), at_once):
        chosen = np.minimum(np.arange(begin, begin + at_once), len(rows) - 1)
        outputs = program({name: value[chosen] for name, value in batch.items()})
        losses += outputs["loss"].tolist()
        norms += outputs["gradient_norm"].tolist()
    codec = spec.problem.codec(spec.data_dir)
    examples = []
    for index, row in enumerate(rows):
        tokens = [batch[name][index] for name in _TEXT_FEATURES if name in batch]
        texts = [codec.decode(ids[ids != 0].tolist()) for ids in tokens] if codec else []
        examples.append(ReplayedExample(row, losses[index], norms[index], " => ".join(texts)))
    return sorted(examples, key=lambda x: (math.isfinite(x.gradient_norm), -x.gradient_norm))


def _row_program(
    spec: RunSpec, estimator: Estimator, batch: Batch, features: Mapping[str, Feature]
) -> tuple[Program, int]:
    """Returns the program for the loss and gradient norm of single rows, and its batch size."""
    model = spec.model_class(spec.hparams, spec.problem.vocab_sizes(spec.data_dir))
    parameters, _, _ = estimator.parameter_counts()
    count, slices = len(next(iter(batch.values()))), spec.layout.batch_slices
    at_once = min(count, max(1, _MOST_AT_ONCE // max(1, parameters) // slices) * slices)

    def build(rows: int) -> Program:
        def step(mesh: Mesh, parts: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            loss = model.loss(mesh, parts, training=False).loss
            losses, norms = row_losses_and_norms(loss, mtf.Dimension("batch", rows), mesh)
            return {"loss": losses, "gradient_norm": norms}

        part = {name: np.broadcast_to(0, (rows, *x.shape[1:])) for name, x in batch.items()}
        return estimator.program(step, features_of_batch(part, features))

    try:
        return build(at_once), at_once
    except RowsMixedError as error:
        if slices > 1:
            raise UsageError(
                f"{error}, so each row is computed alone, but {spec.layout} splits the batch:"
                " choose axes that split the model, or none (--mesh_shape=)"
            ) from error
    return build(1), 1


def _values(variables: Variables) -> dict[str, np.ndarray]:
    """Copies each trainable variable into a float64 vector [elements of all its slices]."""
    return {
        v.spec.name: np.concatenate([x.numpy().ravel() for x in v.slices]).astype(np.float64)
        for v in variables
        if v.spec.trainable
    }
