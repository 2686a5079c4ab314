"""Sets of `transformer_lm`, the decoder-only language model."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


@registry.register_hparams
def transformer_lm_plain() -> HParams:
    """12 layers of 768 with the defaults of all hparams: the parent of published models."""
    return transformer_parts.base_transformer()
