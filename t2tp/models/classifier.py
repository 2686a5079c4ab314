"""The interface of classifiers."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from t2tp import mtf
from t2tp.building.mesh import Mesh


@runtime_checkable
class Classifier(Protocol):
    """A model that classifies features into the classes of `targets`."""

    def class_logits(self, mesh: Mesh, features: Mapping[str, mtf.Tensor]) -> mtf.Tensor:
        """Computes the logits of the classes, [batch, classes], without dropout.

        `features` are the problem's features, without `targets` and `weights`.
        """
