"""GPT-2 and GPT-3: sets of `transformer_lm`.

GPT-2: A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3,
for a vocabulary of 50257. Training hyperparameters that it does not report are those of the nearest
size of GPT-3: T. Brown et al. (arXiv:2005.14165), table 2.1 and appendix B.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


def _gpt() -> HParams:
    """Returns the common hyperparameters of GPT-2 and GPT-3."""
    hparams = transformer_parts.base_transformer()
    hparams.activation_dtype = "bfloat16"
    hparams.optimizer_adam_beta2 = 0.95
    hparams.optimizer_adam_epsilon = 1e-8
    hparams.learning_rate_decay_floor = 0.1
    hparams.mlp = "gelu"
    hparams.use_bias = True
    hparams.norm_type = "layer"
    hparams.norm_epsilon = 1e-5
    return hparams


@registry.register_hparams(model="transformer_lm")
def gpt2_small() -> HParams:
    """12 layers of 768: 124 million parameters; 16 rows at a time on one device."""
    hparams = _gpt()
    hparams.batch_size = 512
    hparams.microbatches = 32
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.attention_dropout = 0.1
    return hparams


@registry.register_hparams(model="transformer_lm")
def gpt2_medium() -> HParams:
    """24 layers of 1024: 355 million parameters; 8 rows at a time on one device."""
    hparams = gpt2_small()
    hparams.microbatches = 64
    hparams.d_model = 1024
    hparams.d_ff = 4096
    hparams.num_heads = 16
    hparams.num_hidden_layers = 24
    hparams.learning_rate_constant = 3e-4
    return hparams


@registry.register_hparams(model="transformer_lm")
def gpt2_large() -> HParams:
    """36 layers of 1280: 774 million parameters, on 8 devices of 8 rows at a time."""
    hparams = gpt2_small()
    hparams.mesh_shape = "data:8"
    hparams.zero_stage = 1
    hparams.microbatches = 8
    hparams.d_model = 1280
    hparams.d_ff = 5120
    hparams.num_heads = 20
    hparams.num_hidden_layers = 36
    hparams.learning_rate_constant = 2.5e-4
    return hparams


@registry.register_hparams(model="transformer_lm")
def gpt2_xl() -> HParams:
    """48 layers of 1600: 1.56 billion parameters, on 8 devices of 4 rows at a time."""
    hparams = gpt2_large()
    hparams.microbatches = 16
    hparams.d_model = 1600
    hparams.d_ff = 6400
    hparams.num_heads = 25
    hparams.num_hidden_layers = 48
    hparams.learning_rate_constant = 2e-4
    return hparams


@registry.register_hparams(model="transformer_lm")
def gpt3_175b() -> HParams:
    """96 layers of 12288, all with full attention: 175 billion parameters.

    On 1,024 devices: tensor parallel over the 8 of a host, and sharded at rest over 128 hosts, so
    that each device has 2.7 GB of weights and Adam's moments. Microbatches of four rows of 2048
    tokens.
    """
    hparams = _gpt()
    hparams.batch_size = 3_145_728  # "3.2M" tokens
    hparams.batch_size_unit = "tokens_per_batch"
    hparams.max_length = 2048
    hparams.mesh_shape = "data:128;model:8"
    hparams.zero_stage = 3
    hparams.microbatches = 3
    hparams.recompute = "layer"
    hparams.learning_rate_constant = 0.6e-4
    hparams.learning_rate_warmup_steps = 119  # 375 million tokens
    hparams.learning_rate_decay_steps = 82_650  # 260 billion tokens
    hparams.d_model = 12288
    hparams.d_ff = 4 * 12288
    hparams.num_heads = 96
    hparams.d_kv = 128
    hparams.num_hidden_layers = 96
    return hparams
