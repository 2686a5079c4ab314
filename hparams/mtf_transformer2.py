"""tensor2tensor's sets of `mtf_unitransformer` and `mtf_bitransformer`.

They are for `transformer_lm` and `transformer`. docs/hparams_sets.md lists the differences and
omissions.
"""

from __future__ import annotations

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.hparams import transformer_parts
from t2tp.hparams.mtf_transformer import as_in_mtf, of_width


def _base(hparams: HParams) -> HParams:
    as_in_mtf(hparams)
    of_width(hparams, 1024)
    hparams.batch_size = 4
    hparams.learning_rate_schedule = "rsqrt_decay*linear_decay"
    hparams.d_ff = 2048
    hparams.tie_embeddings = False
    hparams.z_loss = 1e-4
    return hparams


def _tiny(hparams: HParams) -> HParams:
    of_width(hparams, 128)
    hparams.batch_size = 2
    hparams.mesh_shape = ""
    hparams.d_ff = 512
    hparams.num_hidden_layers = 2
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtf_unitransformer_base() -> HParams:
    """6 layers of 1024 over 8 devices."""
    return _base(transformer_parts.base_transformer())


@registry.register_hparams(model="transformer_lm")
def mtf_unitransformer_tiny() -> HParams:
    """2 layers of 128 on one device."""
    hparams = _tiny(mtf_unitransformer_base())
    hparams.num_heads = 4
    return hparams


@registry.register_hparams(model="transformer")
def mtf_bitransformer_base() -> HParams:
    """6 + 6 layers of 1024 over 8 devices."""
    hparams = _base(transformer_parts.base_encoder_decoder())
    hparams.shared_embedding = True
    hparams.max_length = 256
    return hparams


@registry.register_hparams(model="transformer")
def mtf_bitransformer_tiny() -> HParams:
    """2 + 2 layers of 128 on one device."""
    return _tiny(mtf_bitransformer_base())


def lm_dense(size: int) -> HParams:
    """Returns the set of a language model for unlimited data, without dropout.

    Args:
      size: each step doubles the heads and d_ff: 8 and 8192 at 0.
    """
    hparams = mtf_unitransformer_base()
    hparams.batch_size = 128
    hparams.mesh_shape = "data:32"
    hparams.d_ff = 8192 * 2**size
    hparams.d_kv = 256
    hparams.num_heads = 8 * 2**size
    hparams.learning_rate_decay_steps = 65_536
    return hparams


def tr_dense(size: int) -> HParams:
    """Returns the set of a translation model.

    Args:
      size: each step doubles the heads and d_ff: 8 and 4096 at 0.
    """
    hparams = mtf_bitransformer_base()
    hparams.batch_size = 128
    hparams.mesh_shape = "data:32"
    hparams.d_ff = 4096 * 2**size
    hparams.num_heads = 8 * 2**size
    hparams.learning_rate_decay_steps = 51_400
    hparams.label_smoothing = 0.1
    hparams.layer_prepostprocess_dropout = 0.1
    hparams.attention_dropout = 0.1
    hparams.relu_dropout = 0.1
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtr_lm_dense_0() -> HParams:
    """8 heads and a d_ff of 8192."""
    return lm_dense(0)


@registry.register_hparams(model="transformer_lm")
def mtr_lm_dense_0_h1_16() -> HParams:
    """16 heads, which share one head of keys and values."""
    hparams = lm_dense(0)
    hparams.num_heads = 16
    hparams.num_kv_heads = 1
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtr_lm_dense_1() -> HParams:
    """16 heads and a d_ff of 16384."""
    return lm_dense(1)


@registry.register_hparams(model="transformer_lm")
def mtr_lm_dense_2() -> HParams:
    """32 heads and a d_ff of 32768."""
    hparams = lm_dense(2)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer_lm")
def mtr_lm_dense_3() -> HParams:
    """64 heads and a d_ff of 65536."""
    hparams = lm_dense(3)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer")
def mtr_tr_dense_0() -> HParams:
    """8 heads and a d_ff of 4096."""
    return tr_dense(0)


@registry.register_hparams(model="transformer")
def mtr_tr_dense_1() -> HParams:
    """16 heads and a d_ff of 8192."""
    return tr_dense(1)


@registry.register_hparams(model="transformer")
def mtr_tr_dense_2() -> HParams:
    """32 heads and a d_ff of 16384."""
    hparams = tr_dense(2)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer")
def mtr_tr_dense_3() -> HParams:
    """64 heads and a d_ff of 32768."""
    hparams = tr_dense(3)
    hparams.mesh_shape = "data:8;model:4"
    return hparams


@registry.register_hparams(model="transformer")
def mtr_tr_dense_3_88() -> HParams:
    """`mtr_tr_dense_3` over 16 x 8 devices."""
    hparams = tr_dense(3)
    hparams.mesh_shape = "data:16;model:8"
    return hparams
