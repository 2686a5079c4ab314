"""The role of a variable: what each of its dimensions is for.

Optimizers treat a matrix and a bias differently, but their shapes do not tell them apart: a bias of
attention heads has two dimensions, like a matrix. The code that creates a variable therefore
declares its role:

    query matrix    [d_model, heads, d_kv]      MATRIX, inputs d_model, outputs heads and d_kv
    query bias               [heads, d_kv]      BIAS, outputs heads and d_kv
    experts' matrix [experts, d_model, d_ff]    MATRIX per expert, input d_model, output d_ff
    experts' bias            [experts, d_ff]    BIAS per expert, output d_ff

Weight decay (`t2tp.optim.optimizer`), Muon (`t2tp.optim.muon`), `transfer_from`
(`t2tp.building.transfer`) and the balancing of experts read the role.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from t2tp import upstream

MATRIX, HEAD, EMBEDDING, BIAS, NORM = "matrix", "head", "embedding", "bias", "norm"
# No optimizer updates these variables: see `t2tp.optim.train_step`.
BALANCE = "balance"


@dataclass(frozen=True)
class Role:
    """The declared role of a variable.

    Attributes:
      kind: `MATRIX` (matrices and convolution filters), `HEAD` (matrices whose outputs are scores
        of classes or experts), `EMBEDDING` (tables of vectors), `BIAS` (terms that are added),
        `NORM` (scales and offsets of norms) or `BALANCE` (terms that balance experts).
      inputs: dimensions that are summed over, or looked up.
      outputs: dimensions of the result.
      experts: dimensions along which each index has its own weights.
    """

    kind: str
    inputs: Sequence[upstream.Dimension] = ()
    outputs: Sequence[upstream.Dimension] = ()
    experts: Sequence[upstream.Dimension] = ()

    @property
    def dims(self) -> list[upstream.Dimension]:
        """The dimensions of the variable, in the order in which t2tp's layers store them."""
        return [*self.experts, *self.inputs, *self.outputs]
