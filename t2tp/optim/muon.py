"""The Muon optimizer."""

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import tensorflow as tf

from t2tp import mtf, registry
from t2tp.building.mesh import declared
from t2tp.building.role import MATRIX
from t2tp.building.transfer import Growth
from t2tp.hparam import HParams
from t2tp.lowering.deferred_sums import BUCKET
from t2tp.mesh.layout import Layout
from t2tp.optim.adam import Adam
from t2tp.optim.optimizer import Target, UpdateOperation, slot, subtract_scaled
from t2tp.optim.orthogonalization import Matrices, OrthogonalizeOperation


def scale_to_adam(inputs: float, outputs: float) -> float:
    """Returns the factor that gives updates an RMS of 0.2, like Adam's (arXiv:2502.16982, 2.2)."""
    return 0.2 * math.sqrt(max(inputs, outputs))


def scale_by_shape(inputs: float, outputs: float) -> float:
    """Returns the factor sqrt(max(1, outputs / inputs)) (K. Jordan, 2024)."""
    return math.sqrt(max(1.0, outputs / inputs))


# Factors of updates, by their names in PyTorch.
SCALES = {"match_rms_adamw": scale_to_adam, "original": scale_by_shape}


@registry.register_optimizer
class Muon(Adam):
    """Muon for matrices; AdamW for heads (logits, routers) and everything that is not a matrix.

    K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. A step moves
    a matrix along the orthogonalized Nesterov momentum of its gradients. A variable's role
    (`mtf.Role`) defines its matrices, one for each expert: all input dimensions form one side of a
    matrix, and all output dimensions the other side. Any layout gives the same step.
    """

    def __init__(self, learning_rate: mtf.Tensor, hparams: HParams) -> None:
        """Reads `optimizer_muon_...`; orthogonalizes in `activation_dtype`."""
        super().__init__(learning_rate, hparams)
        self._scale = SCALES[hparams.optimizer_muon_scale]
        dtype = tf.as_dtype(hparams.activation_dtype)
        # float16 does not hold small gradients.
        self._dtype = tf.bfloat16 if dtype == tf.float16 else dtype

    def updates(self, targets: Sequence[Target]) -> list[mtf.Operation]:
        """See the base class."""
        by_muon: list[Target] = []
        others: list[Target] = []
        for target in targets:
            role = declared(target.var).role
            is_matrix = role is not None and role.kind == MATRIX
            (by_muon if is_matrix else others).append(target)
        operations = super().updates(others) if others else []
        layout = targets[0].var.mesh.layout
        for group in self._groups(by_muon, layout):
            moments = [slot(target.var, "muon_m") for target, _ in group]
            grads, matrices_of = [t.grad for t, _ in group], [matrices for _, matrices in group]
            momentum = self.hparams.optimizer_muon_momentum
            op = OrthogonalizeOperation(grads, matrices_of, moments, momentum)
            members = zip(group, moments, op.outputs, strict=True)
            for (target, matrices), moment, direction in members:
                update = functools.partial(self._follow, target.decay, self._scale(*matrices.size))
                inputs = [target.grad, direction, target.rate]
                operations.append(UpdateOperation("muon", [target.var, moment], inputs, update))
        return operations

    def rate_factor(self, role: mtf.Role, growth: Growth) -> float:
        """See the base class.

        Whichever `optimizer_muon_scale` is set, this factor makes the spectral norm of a matrix's
        updates grow by `sqrt(growth.outputs / growth.inputs)` (arXiv:2310.17813).
        """
        if role.kind != MATRIX:
            return super().rate_factor(role, growth)
        inputs, outputs = mtf.Shape(role.inputs).size, mtf.Shape(role.outputs).size
        small = self._scale(inputs / growth.inputs, outputs / growth.outputs)
        return math.sqrt(growth.outputs / growth.inputs) * small / self._scale(inputs, outputs)

    def _groups(
        self, targets: Sequence[Target], layout: Layout
    ) -> Iterator[list[tuple[Target, Matrices]]]:
        """Yields groups of variables to orthogonalize together.

        A group is complete when every owner has the same number of matrices and the slices fill a
        collective. Communication of a group can overlap with computation of another.
        """
        by_placement = defaultdict(list)
        for target in targets:
            matrices = Matrices.of(target.var, layout, self._dtype)
            by_placement[matrices.placement].append((target, matrices))
        for placement, members in by_placement.items():
            axes, _ = placement.owners(layout, sum(matrices.count for _, matrices in members))
            owners = math.prod(map(layout.axes.size, (*axes, *placement.split)))
            group: list[tuple[Target, Matrices]] = []
            count = size = 0
            for member in members:
                group.append(member)
                count, size = count + member[1].count, size + member[1].slice_bytes
                if count % owners == 0 and size >= BUCKET:
                    yield group
                    group, count, size = [], 0, 0
            if group:
                yield group

    def _follow(
        self,
        decay: float,
        scale: float,
        var: tf.Variable,
        moment: tf.Variable,
        grad: tf.Tensor,
        direction: tf.Tensor,
        global_rate: tf.Tensor,
    ) -> None:
        # Not computed with the direction, because it would stay in memory until here.
        part = self.constant(1.0 - self.hparams.optimizer_muon_momentum)
        subtract_scaled(moment, part, moment - grad)
        relative = self.hparams.optimizer_muon_relative_rate
        rate = self.shared(("muon", global_rate.ref()), lambda: global_rate * relative)
        self.shrink(var, rate, decay)
        step = self.shared(("step", rate.ref(), scale), lambda: rate * scale)
        subtract_scaled(var, step, tf.cast(direction, tf.float32))
