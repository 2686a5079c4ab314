"""Finds a processor that computes wrongly: all compute the same rows, and the results are compared.

In a training step, processors compute different rows of the batch, so their results cannot be
compared. Here a step runs on a layout that does not split the batch. On `data:4;model:2`, the four
processors with the same coordinate on `model` have equal slices of every tensor, bit for bit. The
first tensor that differs, in the order of computation, identifies the processor. Later tensors may
differ on other processors too, because they are computed from wrong values.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import tensorflow as tf

from t2tp import mtf
from t2tp.building.mesh import Mesh
from t2tp.lowering.context import Lowering
from t2tp.lowering.operation import Operation
from t2tp.lowering.signature import ALL, Signature
from t2tp.mesh.dimensions import BATCH
from t2tp.mesh.layout import PROCESSORS
from t2tp.optim.nonfinite import step_tensors
from t2tp.program.program import Feature, Program
from t2tp.program.replicas import ReplicaMismatch, checksums, copies, equal_groups

LossFn = Callable[[Mesh, dict[str, mtf.Tensor]], mtf.Tensor]


class SameRows:
    """A training step without update, in which all processors compute the same rows."""

    def __init__(
        self, loss_fn: LossFn, program: Program, features: Mapping[str, Feature], microbatches: int
    ) -> None:
        """Builds the step, with the mesh and the variables of the training program.

        The step has only as many rows as one processor has in a microbatch of the training program,
        so it takes no more memory than that program.
        """
        self._layout = program.layout.with_same_rows()
        self._shapes: dict[str, mtf.Shape] = {}
        divisor = program.layout.batch_slices * microbatches
        self._features = {}
        for name, feature in features.items():
            dims = [
                mtf.Dimension(BATCH, dim.size // divisor) if dim.name == BATCH else dim
                for dim in feature.shape.dims
            ]
            self._features[name] = Feature(mtf.Shape(dims), feature.dtype)

        def step(mesh: Mesh, parts: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            tensors = step_tensors(loss_fn(mesh, parts), mesh)
            self._shapes = {name: x.shape for name, x in tensors.items()}
            return {"checksums": _Checksums([*tensors.values()], self._layout.size).outputs[0]}

        self._program = Program(
            step,
            self._features,
            layout=self._layout,
            cluster=program.cluster,
            variables=program.variables,
        )

    def mismatch(self, batch: Mapping[str, np.ndarray], step: int) -> ReplicaMismatch | None:
        """Returns the first tensor that differs between processors. All processes return the same.

        The first rows of `batch` are computed. `step` keys random numbers.
        """
        rows = {
            name: np.asarray(batch[name][tuple(slice(n) for n in feature.shape.to_integer_list)])
            for name, feature in self._features.items()
        }
        found = self._program(rows, step=step)["checksums"]
        for (name, shape), of_tensor in zip(self._shapes.items(), found.T, strict=True):
            for pnums in copies(range(self._layout.size), partial(self._slice_of, shape)):
                equal = equal_groups(pnums, of_tensor[pnums])
                if len(equal) > 1:
                    kind, _, tensor = name.partition(" ")
                    return ReplicaMismatch(tensor, equal, kind)
        return None

    def _slice_of(self, shape: mtf.Shape, pnum: int) -> tuple[int, tuple[int, ...]]:
        """Returns a processor's stage (stages have different layers) and the begin of its slice."""
        return self._layout.stage_of(pnum), self._layout.slice_begin(shape, pnum)


class _Checksums(Operation):
    """Inputs: tensors. Output: the checksum of each processor's slices, int64."""

    signature = Signature(combined=ALL, exact=ALL, pads=True)

    def __init__(self, tensors: list[mtf.Tensor], processors: int) -> None:
        super().__init__(tensors, name="checksums")
        sizes = {PROCESSORS: processors, "tensors": len(tensors)}
        shape = mtf.Shape([mtf.Dimension(*dim) for dim in sizes.items()])
        self._outputs = [mtf.Tensor(self, shape, tf.int64)]

    def lower(self, lowering: Lowering) -> None:
        pnum = lowering.mesh_impl(self).laid_out_pnum().slice
        one = tf.cast(pnum >= 0, tf.int64)
        sums = checksums([lowering.masked_slice(x) for x in self.inputs], one)
        lowering.set_slice(self.outputs[0], sums[tf.newaxis])
