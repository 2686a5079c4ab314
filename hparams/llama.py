"""Llama-like models: sets of `transformer_lm`.

RMS norm, rotary positions, SwiGLU, no biases. H. Touvron et al., "Llama 2" (arXiv:2307.09288),
section 2.2, also for the training; 8B: "The Llama 3 Herd of Models" (arXiv:2407.21783), table 3;
3B: Llama 3.2's configuration, with its slower rotary pairs; 1B: P. Zhang et al., "TinyLlama"
(arXiv:2401.02385).
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


@registry.register_hparams(model="transformer_lm")
def llama_7b() -> HParams:
    """Llama 2, 32 layers of 4096: 6.7 billion parameters for a vocabulary of 32000.

    Data parallel; optimizer state and gradients are sharded. A device has two rows at a time.
    """
    hparams = transformer_parts.base_transformer()
    hparams.batch_size = 4_194_304
    hparams.batch_size_unit = "tokens_per_batch"
    hparams.max_length = 4096
    hparams.mesh_shape = "data:32"
    hparams.zero_stage = 2
    hparams.microbatches = 16
    hparams.activation_dtype = "bfloat16"
    hparams.recompute = "layer"
    hparams.optimizer_adam_beta2 = 0.95
    hparams.optimizer_adam_epsilon = 1e-5
    hparams.learning_rate_constant = 3e-4
    hparams.learning_rate_decay_floor = 0.1
    hparams.d_model = 4096
    hparams.d_ff = 11008
    hparams.num_heads = 32
    hparams.d_kv = 128
    hparams.num_hidden_layers = 32
    hparams.position = "rotary"
    hparams.mlp = "swiglu"
    hparams.norm_epsilon = 1e-5
    hparams.tie_embeddings = False
    return hparams


@registry.register_hparams(model="transformer_lm")
def llama_13b() -> HParams:
    """Llama 2, 40 layers of 5120: 13 billion parameters for a vocabulary of 32000."""
    hparams = llama_7b()
    hparams.mesh_shape = "data:64"
    hparams.microbatches = 8
    hparams.d_model = 5120
    hparams.d_ff = 13824
    hparams.num_heads = 40
    hparams.num_hidden_layers = 40
    return hparams


@registry.register_hparams(model="transformer_lm")
def llama_70b() -> HParams:
    """Llama 2, 80 layers of 8192, 8 heads of keys: 69 billion parameters, vocabulary of 32000.

    On 512 devices: tensor parallel over the 8 of a host, and sharded at rest over 64 hosts, so that
    each device has 2.2 GB of weights and Adam's moments. Microbatches of two rows of 4096 tokens.
    """
    hparams = llama_7b()
    hparams.mesh_shape = "data:64;model:8"
    hparams.layout += ";kv_heads:model"
    hparams.zero_stage = 3
    hparams.microbatches = 8
    hparams.learning_rate_constant = 1.5e-4
    hparams.d_model = 8192
    hparams.d_ff = 28672
    hparams.num_heads = 64
    hparams.num_kv_heads = 8
    hparams.num_hidden_layers = 80
    return hparams


@registry.register_hparams(model="transformer_lm")
def llama_8b() -> HParams:
    """Llama 3, 32 layers of 4096: 8.0 billion parameters for a vocabulary of 128256."""
    hparams = llama_7b()
    hparams.max_length = 8192
    hparams.mesh_shape = "data:64"
    hparams.layout += ";kv_heads:model"
    hparams.microbatches = 8
    hparams.learning_rate_warmup_steps = 8000
    hparams.d_ff = 14336
    hparams.num_kv_heads = 8
    hparams.rotary_base = 500_000.0
    return hparams


@registry.register_hparams(model="transformer_lm")
def llama_3b() -> HParams:
    """Llama 3.2, 28 layers of 3072, tied: 3.2 billion parameters for a vocabulary of 128256."""
    hparams = llama_8b()
    hparams.mesh_shape = "data:16"
    hparams.zero_stage = 1
    hparams.microbatches = 32
    hparams.d_model = 3072
    hparams.d_ff = 8192
    hparams.num_heads = 24
    hparams.num_hidden_layers = 28
    hparams.rotary_scaling_factor = 32.0
    hparams.tie_embeddings = True
    return hparams


@registry.register_hparams(model="transformer_lm")
def llama_1b() -> HParams:
    """TinyLlama, 22 layers of 2048: 1.1 billion parameters for a vocabulary of 32000."""
    hparams = llama_7b()
    hparams.batch_size = 2_097_152
    hparams.max_length = 2048
    hparams.mesh_shape = "data:8"
    hparams.layout += ";kv_heads:model"
    hparams.zero_stage = 1
    hparams.microbatches = 32
    hparams.learning_rate_constant = 4e-4
    hparams.d_model = 2048
    hparams.d_ff = 5632
    hparams.num_heads = 32
    hparams.num_kv_heads = 4
    hparams.d_kv = 64
    hparams.num_hidden_layers = 22
    return hparams
