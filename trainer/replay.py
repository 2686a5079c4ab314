"""Replays one step of a run, to find the examples that disturbed it.

The batch of a step is a function of the run's seed and the step, so a run need not have kept it.
The variables come from the latest checkpoint before the step and the steps in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2tp import mtf
from t2tp.ops.variables.sharded_variable import gradients_at_rest
from t2tp.optim.clipping import global_norm
from t2tp.optim.gradient_accumulation import variable_gradients, variables_of
from t2tp.optim.nonfinite import first_nonfinite
from t2tp.program.program import Feature, Mesh, StepFn
from t2tp.program.variables import Variables
from t2tp.trainer.errors import UsageError
from t2tp.trainer.estimator import Estimator
from t2tp.trainer.inputs.inputs import Batch, features_of_batch
from t2tp.trainer.inputs.problem_inputs import training_inputs
from t2tp.trainer.model_fn import ModeKeys
from t2tp.trainer.run_spec import RunSpec

_TEXT_FEATURES = ("inputs", "targets")


@dataclass(frozen=True)
class ReplayedExample:
    """A row of the step's batch.

    Attributes:
      row: its index in the batch.
      loss: the row's own loss, without dropout.
      gradient_norm: norm of the gradient of that loss w.r.t. all trainable variables.
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
      begun_from: step of the values that the replay began with; 0: the initial values.
      scalars: the step's `loss`, `gradient_norm` and other reported scalars.
      examples: the rows, the largest gradient norm first, non-finite ones before all others.
      first_nonfinite: the first tensor of the step that is not finite; None: all are.
      updates: variable -> norm of its update relative to its own, the largest first.
    """

    step: int
    begun_from: int
    scalars: Mapping[str, float]
    examples: Sequence[ReplayedExample]
    first_nonfinite: str | None
    updates: Mapping[str, float]


def replay(spec: RunSpec, step: int, without_rows: Sequence[int] = ()) -> ReplayedStep:
    """Replays a step of a run; writes no files.

    On the run's own mesh the replayed values are those of the run, bit for bit; on another one they
    are equal up to rounding.

    Args:
      spec: the run, on a mesh that does not split the batch.
      step: the step, from 1.
      without_rows: rows of the batch to leave out.

    Raises:
      UsageError: the mesh splits the batch or has stages, or the batch lacks a row.
    """
    _check(spec, step)
    estimator = spec.make_estimator()
    inputs = training_inputs(spec.problem, spec.data_dir, spec.hparams, spec.config.random_seed)
    begun_from, stream = estimator.rewind(inputs, step - 1)
    batch, rows = _without(stream[step - 1], without_rows)
    examples = _examples(spec, estimator, batch, rows, inputs.features)
    bad_tensor = None
    if not all(math.isfinite(x.loss) and math.isfinite(x.gradient_norm) for x in examples):
        counts = estimator.count_nonfinite(batch, inputs.features, step - 1)
        bad_tensor = first_nonfinite(counts)
    program = estimator.build(ModeKeys.TRAIN, features_of_batch(batch, inputs.features))
    before = _values(program.variables)
    outputs = program(batch, step=step - 1)
    scalars = {
        name.removeprefix("scalars/"): float(outputs[name])
        for name in outputs
        if name == "loss" or name.startswith("scalars/")
    }
    updates = _relative_updates(before, _values(program.variables))
    return ReplayedStep(step, begun_from, scalars, examples, bad_tensor, updates)


def _check(spec: RunSpec, step: int) -> None:
    if step < 1:
        raise UsageError(f"--step={step}: steps are counted from 1")
    if spec.layout.num_stages > 1 or spec.layout.batch_shards > 1:
        raise UsageError(
            f"{spec.layout} splits the batch or has stages, and a replay computes each row by"
            " itself: choose axes that split the model, or none (--mesh_shape=)"
        )


def _without(batch: Batch, left_out: Sequence[int]) -> tuple[dict[str, np.ndarray], list[int]]:
    """Returns the batch as arrays without some rows, and the indices of the others."""
    arrays = {
        name: np.asarray(value[tuple(slice(0, size) for size in value.shape)])
        for name, value in batch.items()
    }
    count = len(next(iter(arrays.values())))
    unknown = [row for row in left_out if not 0 <= row < count]
    if unknown:
        raise UsageError(f"there is no row {unknown[0]}: the batch has rows 0 to {count - 1}")
    rows = [row for row in range(count) if row not in left_out]
    if not rows:
        raise UsageError(f"no row is left of the batch's {count}")
    return {name: value[rows] for name, value in arrays.items()}, rows


def _examples(
    spec: RunSpec,
    estimator: Estimator,
    batch: Mapping[str, np.ndarray],
    rows: Sequence[int],
    features: Mapping[str, Feature],
) -> list[ReplayedExample]:
    """Computes loss and gradient of each row by itself."""
    first = {name: value[:1] for name, value in batch.items()}
    program = estimator.program(_row_step(spec), features_of_batch(first, features))
    codec = spec.problem.codec(spec.data_dir)
    examples = []
    for index, row in enumerate(rows):
        one = {name: value[index : index + 1] for name, value in batch.items()}
        outputs = program(one)
        tokens = [one[name][0] for name in _TEXT_FEATURES if name in one]
        texts = [codec.decode(ids[ids != 0].tolist()) for ids in tokens] if codec else []
        text = " => ".join(texts)
        examples.append(
            ReplayedExample(row, float(outputs["loss"]), float(outputs["gradient_norm"]), text)
        )
    return sorted(examples, key=lambda x: (math.isfinite(x.gradient_norm), -x.gradient_norm))


def _row_step(spec: RunSpec) -> StepFn:
    """Returns the step that computes the loss of a batch and the norm of its gradient."""
    model = spec.model_class(spec.hparams, spec.problem.vocab_sizes(spec.data_dir))

    def step(mesh: Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        loss = model.loss(mesh, features, training=False).loss
        gradients = gradients_at_rest(variable_gradients(loss, mesh), variables_of(mesh))
        return {"loss": loss, "gradient_norm": global_norm(gradients)}

    return step


def _values(variables: Variables) -> dict[str, list[np.ndarray]]:
    """Copies this process's slices of the trainable variables."""
    return {
        variable.spec.name: [each.numpy().astype(np.float64) for each in variable.slices]
        for variable in variables
        if variable.spec.trainable
    }


def _relative_updates(
    before: Mapping[str, Sequence[np.ndarray]], after: Mapping[str, Sequence[np.ndarray]]
) -> dict[str, float]:
    def norm(slices: Any) -> float:
        return math.sqrt(sum(float(np.sum(np.square(x))) for x in slices))

    updates = {
        name: norm(x - y for x, y in zip(after[name], old, strict=True)) / (norm(old) or 1.0)
        for name, old in before.items()
    }
    return dict(sorted(updates.items(), key=lambda each: (math.isfinite(each[1]), -each[1])))
