"""T5 and Switch: sets of `transformer` and of `transformer_moe_encdec`.

C. Raffel et al., "T5" (arXiv:1910.10683), sections 2.1, 3.1 and 3.2; W. Fedus et al., "Switch
Transformers" (arXiv:2101.03961), tables 1 and 9, with the feed-forward networks of the published
checkpoints. All for a vocabulary of 32128.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


@registry.register_hparams(model="transformer")
def t5_small() -> HParams:
    """6 + 6 layers of 512: 60 million parameters."""
    hparams = transformer_parts.base_encoder_decoder()
    hparams.batch_size = 65_536
    hparams.batch_size_unit = "tokens_per_batch"
    hparams.max_length = 512
    hparams.microbatches = 4
    hparams.activation_dtype = "bfloat16"
    hparams.optimizer = "adafactor"
    hparams.clip_grad_norm = 0.0  # Adafactor clips updates itself.
    hparams.weight_decay = 0.0
    hparams.learning_rate_schedule = "constant*rsqrt_decay"
    hparams.learning_rate_constant = 1.0
    hparams.learning_rate_warmup_steps = 10_000
    hparams.num_heads = 8
    hparams.num_hidden_layers = 6
    hparams.position = "relative"
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.attention_dropout = 0.1
    hparams.relu_dropout = 0.1
    hparams.z_loss = 1e-4
    return _of_width(hparams, 512)


@registry.register_hparams(model="transformer")
def t5_base() -> HParams:
    """12 + 12 layers of 768: 223 million parameters."""
    hparams = t5_small()
    hparams.num_heads = 12
    hparams.num_hidden_layers = 12
    return _of_width(hparams, 768)


@registry.register_hparams(model="transformer")
def t5_large() -> HParams:
    """24 + 24 layers of 1024: 738 million parameters, on 8 devices."""
    hparams = t5_small()
    hparams.mesh_shape = "data:8"
    hparams.microbatches = 1
    hparams.num_heads = 16
    hparams.num_hidden_layers = 24
    return _of_width(hparams, 1024)


@registry.register_hparams(model="transformer")
def t5_3b() -> HParams:
    """24 + 24 layers of 1024 with wide blocks: 2.9 billion parameters, on 32 devices."""
    hparams = t5_large()
    hparams.mesh_shape = "data:32"
    hparams.zero_stage = 1
    hparams.num_heads = 32
    hparams.d_kv = 128
    hparams.d_ff = 16_384
    return hparams


@registry.register_hparams(model="transformer")
def t5_11b() -> HParams:
    """`t5_3b` with blocks four times as wide: 11.3 billion parameters, on 64 devices."""
    hparams = t5_3b()
    hparams.mesh_shape = "data:64"
    hparams.zero_stage = 3
    hparams.num_heads = 128
    hparams.d_ff = 65_536
    return hparams


@registry.register_hparams(model="transformer_moe_encdec")
def switch_base() -> HParams:
    """`t5_base` with 128 experts in every other layer: 7 billion parameters, on 32 devices."""
    return _switch(t5_base(), "data:32")


@registry.register_hparams(model="transformer_moe_encdec")
def switch_large() -> HParams:
    """`t5_large` with 128 experts in every other layer: 26 billion parameters, on 64 devices."""
    return _switch(t5_large(), "data:64")


def _of_width(hparams: HParams, d_model: int) -> HParams:
    """Sets d_model, d_ff, embeddings of unit variance, and logits scaled by d_model**-0.5."""
    hparams.d_model = d_model
    hparams.d_ff = 4 * d_model
    hparams.scale_embeddings = True
    hparams.initializer_stddev = d_model**-0.5
    return hparams


def _switch(hparams: HParams, mesh_shape: str) -> HParams:
    transformer_parts.declare_experts(hparams)
    hparams.batch_size = 1_048_576
    hparams.microbatches = 4
    hparams.mesh_shape = mesh_shape
    hparams.layout += ";experts:data"
    hparams.num_experts = 128
    hparams.moe_router_z_loss = 0.0
    return hparams
