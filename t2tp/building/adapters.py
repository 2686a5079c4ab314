"""Low-rank adapters (LoRA): small matrices that are trained in place of a model's weights.

E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685), section 4.1:
a weight W is frozen, and `x W` becomes `x W + (alpha / rank) (x A) B` with A [in, rank] and B
[rank, out]. B is initially 0. `t2tp.layers.linear` adds A and B as the variables `<weight>_lora_a`
and `<weight>_lora_b`. All other variables are frozen, except those that match `also_trained`.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2tp import upstream
from t2tp.hparam import HParams
from t2tp.suggestions import matches

DOWN, UP = "_lora_a", "_lora_b"


@dataclass(frozen=True)
class Adapters:
    """Which weights of a model have adapters, and the adapters' hyperparameters.

    Attributes:
      rank: the number of columns of A.
      alpha: numerator of the scale alpha / rank.
      targets: kinds of weights that have adapters; each is in `t2tp.choices.ADAPTED`.
      also_trained: patterns of the names of further trained variables; see `matches`.
      dropout: dropout rate of the adapters' inputs in training.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    also_trained: str = ""
    dropout: float = 0.0

    @classmethod
    def from_hparams(cls, hparams: HParams) -> Adapters | None:
        """Reads the `lora_*` hyperparameters; None if `lora_rank` is missing or 0.

        Raises:
          ValueError: `lora_targets` is empty.
        """
        if "lora_rank" not in hparams:
            return None
        adapters = hparams.construct(cls, prefix="lora_", targets=tuple(hparams.lora_targets))
        if not adapters.rank:
            return None
        if not adapters.targets:
            raise ValueError(f"lora_rank={adapters.rank} with no lora_targets would train nothing")
        return adapters

    @property
    def scale(self) -> float:
        """The factor alpha / rank by which `x A B` is multiplied."""
        return self.alpha / self.rank

    def freezes(self, name: str) -> bool:
        """Whether a variable that is not an adapter's is frozen."""
        return not matches(name, self.also_trained)

    def check_also_trained(self, graph: upstream.Graph) -> None:
        """Raises ValueError if `also_trained` is set and matches no variable of a model's graph."""
        names = [variable.name for variable in graph.all_variables]
        if self.also_trained and all(map(self.freezes, names)):
            raise ValueError(
                f"lora_also_trained={self.also_trained!r} matches no variable of the model, such as"
                f" {names[0]}"
            )


# Freezes all variables of a model, and adds no adapters.
FROZEN = Adapters(1, 1.0, ())
