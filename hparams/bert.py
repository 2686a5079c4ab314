"""BERT: sets of `transformer_encoder`; on a language problem, a masked language model.

J. Devlin et al. (arXiv:1810.04805), section 3 and appendix A.2, for a vocabulary of 30522, with the
layers of the published checkpoints; without next-sentence prediction.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams.transformer_encoder import transformer_encoder_base


@registry.register_hparams(model="transformer_encoder")
def bert_base() -> HParams:
    """12 post-norm layers of 768: 110 million parameters; 32 rows at a time on one device."""
    hparams = transformer_encoder_base()
    hparams.batch_size = 256
    hparams.microbatches = 8
    hparams.activation_dtype = "bfloat16"
    hparams.optimizer_adam_beta2 = 0.999
    hparams.optimizer_adam_epsilon = 1e-6
    hparams.weight_decay = 0.01
    hparams.learning_rate_schedule = "constant*linear_warmup*linear_decay"
    hparams.learning_rate_warmup_steps = 10_000
    hparams.norm_position = "post"
    hparams.norm_epsilon = 1e-12
    hparams.mlp = "gelu_erf"
    hparams.embedding_norm = True
    hparams.token_types = 2
    hparams.mlm_head = True
    hparams.logits_bias = True
    hparams.pooler = True
    return hparams


@registry.register_hparams(model="transformer_encoder")
def bert_large() -> HParams:
    """24 post-norm layers of 1024: 335 million parameters; 16 rows at a time on one device."""
    hparams = bert_base()
    hparams.microbatches = 16
    hparams.d_model = 1024
    hparams.d_ff = 4096
    hparams.num_heads = 16
    hparams.num_hidden_layers = 24
    return hparams
