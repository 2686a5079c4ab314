"""Transformers with mixture-of-experts layers.

See Switch Transformers (arXiv:2101.03961) and GShard (arXiv:2006.16668).
"""

from t2tp import registry
from t2tp.models.transformer import Transformer
from t2tp.models.transformer_encoder import TransformerEncoder
from t2tp.models.transformer_lm import TransformerLm


@registry.register_model
class TransformerMoe(TransformerLm):
    """`transformer_lm` with experts in every `moe_every`-th layer."""

    has_experts = True


@registry.register_model
class TransformerMoeEncdec(Transformer):
    """`transformer` with experts in every `moe_every`-th layer of encoder and decoder."""

    has_experts = True


@registry.register_model
class TransformerMoeEncoder(TransformerEncoder):
    """`transformer_encoder` with experts in every `moe_every`-th layer."""

    has_experts = True
