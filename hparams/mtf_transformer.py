"""tensor2tensor's sets of `mtf_transformer`: for `transformer` and `transformer_lm`.

Names, sizes, batches and meshes are tensor2tensor's; the mesh axis that splits the batch, `batch`
there, is `data` here. docs/hparams_sets.md lists the differences and omissions.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts


def as_in_mtf(hparams: HParams) -> None:
    """Sets the common hyperparameters of tensor2tensor's Mesh-TensorFlow models."""
    hparams.mesh_shape = "model:8"
    hparams.activation_dtype = "bfloat16"
    hparams.optimizer = "adafactor"
    hparams.clip_grad_norm = 0.0
    hparams.weight_decay = 0.0
    hparams.learning_rate_schedule = "linear_warmup*rsqrt_decay*linear_decay"
    hparams.learning_rate_warmup_steps = 10_000
    hparams.learning_rate_decay_steps = 5000
    hparams.num_heads = 8
    hparams.d_kv = 128
    hparams.num_hidden_layers = 6
    hparams.layer_prepostprocess_dropout_broadcast_dims = ["length"]


def of_width(hparams: HParams, d_model: int) -> None:
    """Sets d_model, embeddings of unit variance, and logits scaled by d_model**-0.5."""
    hparams.d_model = d_model
    hparams.scale_embeddings = True
    hparams.initializer_stddev = d_model**-0.5


def _base(hparams: HParams) -> HParams:
    as_in_mtf(hparams)
    of_width(hparams, 512)
    hparams.batch_size = 64
    hparams.max_length = 256
    hparams.d_ff = 2048
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.attention_dropout = 0.1
    hparams.relu_dropout = 0.1
    return hparams


def _tiny(hparams: HParams) -> HParams:
    of_width(hparams, 128)
    hparams.batch_size = 8
    hparams.mesh_shape = "data:2;model:4"
    hparams.activation_dtype = "float32"
    hparams.d_ff = 512
    hparams.num_hidden_layers = 2
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_base() -> HParams:
    """6 + 6 layers of 512 over 8 devices."""
    hparams = _base(transformer_parts.base_encoder_decoder())
    hparams.shared_embedding = True
    hparams.label_smoothing = 0.1
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_base_lm() -> HParams:
    """6 layers of 512 over 8 devices."""
    return _base(transformer_parts.base_transformer())


@registry.register_hparams(model="transformer")
def mtf_transformer_tiny() -> HParams:
    """2 + 2 layers of 128 over 2 x 4 devices."""
    return _tiny(mtf_transformer_base())


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_tiny_lm() -> HParams:
    """2 layers of 128 over 2 x 4 devices."""
    return _tiny(mtf_transformer_base_lm())


@registry.register_hparams(model="transformer")
def mtf_transformer_single() -> HParams:
    """2 + 2 layers of 128 on one device."""
    hparams = mtf_transformer_tiny()
    hparams.mesh_shape = ""
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_tiny_8gpu() -> HParams:
    """2 + 2 layers of 128, split over 8 devices."""
    hparams = mtf_transformer_tiny()
    hparams.mesh_shape = "model:8"
    return hparams


def paper_lm(size: int) -> HParams:
    """Returns the set of a language model of the Mesh-TensorFlow paper (arXiv:1811.02084).

    Section 9.1.

    Args:
      size: each step doubles the heads and d_ff: 8 and 8192 at 0.
    """
    hparams = mtf_transformer_base_lm()
    of_width(hparams, 1024)
    hparams.batch_size = 256
    hparams.d_ff = int(8192 * 2**size)
    hparams.d_kv = 256
    hparams.num_heads = int(8 * 2**size)
    hparams.tie_embeddings = False
    hparams.learning_rate_decay_steps = 13_600
    return hparams


def paper_tr(size: int) -> HParams:
    """Returns the set of a translation model of the Mesh-TensorFlow paper, section 9.2.

    Args:
      size: each step doubles the heads and d_ff: 8 and 4096 at 0.
    """
    hparams = mtf_transformer_base()
    of_width(hparams, 1024)
    hparams.batch_size = 128
    hparams.d_ff = int(4096 * 2**size)
    hparams.num_heads = int(8 * 2**size)
    hparams.tie_embeddings = False
    hparams.learning_rate_decay_steps = 51_400
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_m1() -> HParams:
    """0.14 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(-1)
    hparams.mesh_shape = "data:32"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_0() -> HParams:
    """0.22 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(0)
    hparams.mesh_shape = "data:32"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_1() -> HParams:
    """0.37 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(1)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_2() -> HParams:
    """0.67 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(2)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_3() -> HParams:
    """1.28 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(3)
    hparams.mesh_shape = "data:16;model:8"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_4() -> HParams:
    """2.48 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(4)
    hparams.mesh_shape = "data:16;model:32"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_paper_lm_5() -> HParams:
    """4.90 billion parameters for a vocabulary of 32768."""
    hparams = paper_lm(5)
    hparams.mesh_shape = "data:16;model:32"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_transformer_lm_baseline() -> HParams:
    """`mtf_transformer_paper_lm_m1` for 8 devices and twice as many steps."""
    hparams = paper_lm(-1)
    hparams.batch_size = 128
    hparams.mesh_shape = "data:8"
    hparams.learning_rate_decay_steps = 27_200
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_m1() -> HParams:
    """4 heads and a d_ff of 2048, over 32 devices."""
    hparams = paper_tr(-1)
    hparams.mesh_shape = "data:32"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0() -> HParams:
    """8 heads and a d_ff of 4096, over 32 devices."""
    hparams = paper_tr(0)
    hparams.mesh_shape = "data:32"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_1() -> HParams:
    """16 heads and a d_ff of 8192, over 8 x 4 devices."""
    hparams = paper_tr(1)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_2() -> HParams:
    """32 heads and a d_ff of 16384, over 8 x 4 devices."""
    hparams = paper_tr(2)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_3() -> HParams:
    """64 heads and a d_ff of 32768, over 16 x 8 devices."""
    hparams = paper_tr(3)
    hparams.mesh_shape = "data:16;model:8"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_4() -> HParams:
    """128 heads and a d_ff of 65536, over 16 x 8 devices."""
    hparams = paper_tr(4)
    hparams.mesh_shape = "data:16;model:8"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_a32() -> HParams:
    """`mtf_transformer_paper_tr_0`, computed in float32."""
    hparams = mtf_transformer_paper_tr_0()
    hparams.activation_dtype = "float32"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_nf() -> HParams:
    """`mtf_transformer_paper_tr_0` without factored second moments."""
    hparams = mtf_transformer_paper_tr_0()
    hparams.optimizer_adafactor_factored = False
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_mesh_8() -> HParams:
    """`mtf_transformer_paper_tr_0` over 8 devices."""
    hparams = paper_tr(0)
    hparams.mesh_shape = "data:8"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_4_mesh_16_8() -> HParams:
    """`mtf_transformer_paper_tr_4` over 16 x 8 devices."""
    hparams = paper_tr(4)
    hparams.mesh_shape = "data:8;model:16"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_6_mesh_64_8() -> HParams:
    """512 heads and a d_ff of 262144, over 8 x 64 devices."""
    hparams = paper_tr(6)
    hparams.mesh_shape = "data:8;model:64"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_mesh_8_v2() -> HParams:
    """`mtf_transformer_paper_tr_0` with a quarter of the batch, over 8 devices."""
    hparams = paper_tr(0)
    hparams.batch_size = 32
    hparams.mesh_shape = "data:8"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_mesh_128() -> HParams:
    """`mtf_transformer_paper_tr_0` with four times the batch, over 128 devices."""
    hparams = paper_tr(0)
    hparams.batch_size = 512
    hparams.mesh_shape = "data:128"
    return hparams


@registry.register_hparams(model="transformer")
def mtf_transformer_paper_tr_0_mesh_512() -> HParams:
    """`mtf_transformer_paper_tr_0` with 16 times the batch, over 512 devices."""
    hparams = paper_tr(0)
    hparams.batch_size = 2048
    hparams.mesh_shape = "data:512"
    return hparams
