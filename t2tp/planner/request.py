"""A request for a plan: a training step, its hparams and its features."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from t2tp.hparam import HParams
from t2tp.mesh.layout import Layout
from t2tp.planner.cluster_file import ClusterFile
from t2tp.planner.depth import lower_by_layers
from t2tp.planner.plan import Plan
from t2tp.planner.stages.staged_step import StagedStep, staged_plan
from t2tp.planner.stages.steps import StageLowering
from t2tp.program.abstract_program import AbstractProgram
from t2tp.program.program import Feature, StepFn
from t2tp.step.lowered import LoweredStep


@dataclass(frozen=True)
class Request:
    """A request for a plan.

    Attributes:
      hparams: hparams, with mesh shape and layout.
      features: function from hparams to the features of a global batch.
      training_step: function from hparams and a share to a training step. The share is the ratio of
        the lowered stages to the real stages; it scales the depth of a teacher.
      lowered_before: cache of lowered programs, shared between plans.
    """

    name: str
    hparams: HParams
    features: Callable[[HParams], Mapping[str, Feature]]
    training_step: Callable[[HParams, float], StepFn]
    lowered_before: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def plan(self, cluster: ClusterFile) -> Plan:
        """Predicts the cost of a step on a cluster.

        Raises:
          LayoutError: the layout cannot work.
        """
        layout = Layout.from_hparams(self.hparams)
        cluster = cluster.on_mesh(layout.size)
        details = self.name, self.tokens, self.hparams.activation_dtype
        if layout.num_stages > 1:
            return staged_plan(self.staged(cluster), cluster, *details)
        return Plan.from_step(self.lowered(cluster), cluster, *details)

    @property
    def tokens(self) -> int:
        """Tokens of a step: batch times length of the largest feature; for images, the batch."""
        shapes = [feature.shape for feature in self.features(self.hparams).values()]
        names = ("batch", "length")
        return max(
            math.prod(dim.size for dim in shape.dims if dim.name in names) for shape in shapes
        )

    def lowered(self, cluster: ClusterFile) -> LoweredStep:
        """Lowers a step without stages for a cluster's software.

        Raises:
          LayoutError: the layout cannot work.
        """
        software = cluster.software

        def lower(hparams: HParams) -> LoweredStep:
            key = repr(hparams), software
            if key not in self.lowered_before:
                self.lowered_before[key] = LoweredStep.from_program(
                    self.program(hparams), software=software
                )
            return self.lowered_before[key]

        return lower_by_layers(lower, self._for_software(cluster))

    def staged(self, cluster: ClusterFile) -> StagedStep:
        """Lowers a step with stages.

        Raises:
          LayoutError: the layers cannot be divided among the stages, or the schedule is unknown or
            invalid.
        """
        whole = self.features(self.hparams)

        def build(hparams: HParams, fewer: Callable[[Feature], Feature]) -> AbstractProgram:
            return self.program(hparams, {name: fewer(each) for name, each in whole.items()})

        hparams = self._for_software(cluster)
        lowering = StageLowering(build, hparams, cluster.software, self.lowered_before)
        return StagedStep(hparams, lowering)

    def _for_software(self, cluster: ClusterFile) -> HParams:
        """Returns the hparams for a cluster's software stack.

        Only t2tp's own stack computes logits chunk by chunk. With another stack, `loss_chunk` is
        turned off.
        """
        return self.hparams.with_values({} if cluster.software.own else {"loss_chunk": -1})

    def program(
        self, hparams: HParams, features: Mapping[str, Feature] | None = None
    ) -> AbstractProgram:
        """Builds the abstract program of a training step.

        `features` defaults to the features of the global batch.
        """
        layout = Layout.from_hparams(hparams)
        return AbstractProgram(
            self.step_fn(hparams), features or self.features(hparams), layout=layout
        )

    def step_fn(self, hparams: HParams) -> StepFn:
        """Returns a training step for `t2tp.Program`, with the trainer's outputs."""
        # The lowered pipeline has fewer stages than the real one.
        real, lowered = (Layout.from_hparams(each).num_stages for each in (self.hparams, hparams))
        return self.training_step(hparams, lowered / real)
