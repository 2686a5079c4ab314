"""`--check_transfer`: the coordinate check of muP, for runs that set the hparam `transfer_from`.

With the right transfer rules, the activations of a wide model are as large as the activations of a
small model, and change as much in the first steps (G. Yang et al., arXiv:2203.03466, appendix D.1).
The check trains models of several widths, from the small model's to the run's, for a few steps on
the same batches, on one device. For each product of activations and weights it compares the mean
absolute value between the widths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh, declared
from t2tp.building.transfer import Transfer
from t2tp.hparam import HParams
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Program, StepFn
from t2tp.trainer.errors import UsageError
from t2tp.trainer.inputs.inputs import Inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from t2tp.trainer.references import ignore_references
from t2tp.trainer.run_spec import RunSpec

STEPS = 10
_MOST_WIDTHS = 5
# Mean absolute values that grow by this factor or more per doubling of the width are reported.
_LARGEST_GROWTH = 1.25
# Settings for training on one device, with the full learning rate from the first step.
_PLAIN = {
    "mesh_shape": "",
    "layout": "",
    "zero_stage": 0,
    "storage_layout": "",
    "zero_axes": "",
    "microbatches": 1,
    "recompute": "none",
    "learning_rate_schedule": "constant",
}


@dataclass(frozen=True)
class TransferCheck:
    """Mean absolute values ("sizes") of activations by width.

    Attributes:
      widths: width of each model, relative to the small model. The width is the number of inputs
        of one matrix: the matrix whose number of inputs grows most.
      sizes: mean absolute values [width, steps done], by name of the activation.
    """

    widths: Sequence[float]
    sizes: Mapping[str, np.ndarray]

    def growth(self, name: str, steps: int) -> float:
        """Fits a power law; returns the factor by which a size grows per doubling of the width."""
        sizes = np.log2(np.maximum(self.sizes[name][:, steps], 1e-30))
        return float(2 ** np.polyfit(np.log2(self.widths), sizes, 1)[0])

    @property
    def agrees(self) -> bool:
        """Whether after the last step no size grows with the width by `_LARGEST_GROWTH` or more."""
        return all(self.growth(name, STEPS) < _LARGEST_GROWTH for name in self.sizes)

    def __str__(self) -> str:
        """A table with a row per activation."""
        head = "".join(f"{f'{width:.3g}x':>10}" for width in self.widths)
        longest = max(map(len, self.sizes))
        lines = [f"{f'mean size after {STEPS} steps':{longest}}{head}   growth per doubling of the"]
        lines.append(f"{'':{longest}}{'':{len(head)}}   width after 0, 1 and {STEPS} steps")
        for name, sizes in self.sizes.items():
            cells = "".join(f"{size:10.4g}" for size in sizes[:, STEPS])
            growths = (self.growth(name, steps) for steps in (0, 1, STEPS))
            mark = "  grows" if self.growth(name, STEPS) >= _LARGEST_GROWTH else ""
            factors = " ".join(f"{growth:.2f}" for growth in growths)
            lines.append(f"{name:{longest}}{cells}   {factors}{mark}")
        return "\n".join(lines)


def check_transfer(spec: RunSpec) -> TransferCheck:
    """Trains models of several widths for some steps and records the sizes of activations.

    Raises:
      UsageError: `transfer_from` is not set, or the set that it names is not smaller than the
        run's hparams.
    """
    transfer = Transfer.from_hparams(spec.hparams)
    if transfer is None:
        raise UsageError("--check_transfer compares the run with the set that transfer_from names")
    wide, small = spec.hparams.values(), transfer.small.values()
    grown = {
        name: (small[name], value)
        for name, value in wide.items()
        if type(value) is int and value > small[name] and name not in _PLAIN
    }
    plain = spec.hparams.with_values(_PLAIN)
    inputs, step_fn = _step(spec, plain)
    graph, _ = AbstractProgram(step_fn, inputs.features).graph()
    # The growth is measured on variables, because some of the growing hparams are no widths, for
    # example the number of warm-up steps.
    factor = max(declared(var).growth.inputs for var in graph.trainable_variables)
    if factor <= 1:
        raise UsageError(
            f"transfer_from={spec.hparams.transfer_from}: its set has no smaller sizes than the run"
        )
    count = min(_MOST_WIDTHS, max(2, round(math.log2(factor)) + 1))
    parts, sizes = [place / (count - 1) for place in range(count)], []
    for part in parts:
        values = {n: round(first * (last / first) ** part) for n, (first, last) in grown.items()}
        sizes.append(_train(spec, plain.with_values(values)))
    names = [name for name in sizes[0] if all(name in each for each in sizes)]
    widths = [factor**part for part in parts]
    return TransferCheck(widths, {name: np.array([s[name] for s in sizes]) for name in names})


def _step(spec: RunSpec, hparams: HParams) -> tuple[Inputs, StepFn]:
    """Returns the batches, and a step that outputs each product's mean absolute value."""
    ignore_references(spec.problem)
    inputs = replace(spec, hparams=hparams).training_inputs()
    vocab_sizes = spec.problem.vocab_sizes(spec.data_dir)
    model_fn = model_fn_of(spec.model_class, vocab_sizes, spec.train_steps)

    def step_fn(mesh: Mesh, features: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
        model_fn(mesh, features, ModeKeys.TRAIN, hparams)
        return {
            op.name: mtf.reduce_mean(mtf.abs(mtf.cast(op.outputs[0], tf.float32)))
            for op in list(mesh.graph.operations)
            if isinstance(op, mtf.EinsumOperation)
            and "gradients" not in op.name
            and "batch" in op.outputs[0].shape.dimension_names
            and any(isinstance(x.operation, mtf.Variable) for x in op.inputs)
        }

    return inputs, step_fn


def _train(spec: RunSpec, hparams: HParams) -> dict[str, list[float]]:
    """Trains; returns the mean absolute value of each product after 0, 1, ... steps."""
    inputs, step_fn = _step(spec, hparams)
    program = Program(step_fn, inputs.features)
    sizes: dict[str, list[float]] = {}
    for step in range(STEPS + 1):
        for name, size in program(inputs.stream[step], step).items():
            sizes.setdefault(name, []).append(float(size))
    return sizes
