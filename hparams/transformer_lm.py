"""Sets of `transformer_lm`, the decoder-only language model."""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


@registry.register_hparams
def transformer_lm_base() -> HParams:
    """12 layers of 768: 85 million parameters excluding embeddings."""
    return transformer_parts.base_transformer()


@registry.register_hparams
def transformer_lm_large() -> HParams:
    """24 layers of 1024: 302 million parameters excluding embeddings."""
    hparams = transformer_lm_base()
    transformer_parts.large(hparams)
    return hparams


@registry.register_hparams
def transformer_lm_small() -> HParams:
    """6 layers of 384: 11 million parameters excluding embeddings."""
    hparams = transformer_lm_base()
    transformer_parts.small(hparams)
    return hparams


@registry.register_hparams
def transformer_lm_tiny() -> HParams:
    """2 layers of 128: for tests, demos and CPUs."""
    hparams = transformer_lm_base()
    transformer_parts.tiny(hparams)
    return hparams
