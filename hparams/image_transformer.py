"""Sets of `mtf_image_transformer`, which generates images value by value.

`mtf_image_transformer_digits`, `_small` and `_large` are t2tp's, trained with Adam. The others are
tensor2tensor's, with its values and training; docs/hparams_sets.md lists those that differ, because
they do not work there, and why.
"""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, MAX_SIZE, base_hparams, declare_adapters

_MEGATRON = "batch:data;heads:model;d_ff:model;vocab:model"
_SPACE = "height:rows;width:columns"


def _declared() -> HParams:
    """6 layers of 256 for 32 x 32 pixels, in blocks of 128 values."""
    hparams = base_hparams()
    declare_adapters(hparams)
    hparams.batch_size = 8
    hparams.layout = f"{_MEGATRON};length:length"
    hparams.learning_rate_warmup_steps = 10000
    add = hparams.add
    add(
        "image_shape",
        [32, 32, 3],
        min=1,
        max=MAX_SIZE,
        help="height, width and channels of the images",
    )
    add(
        "attention_type",
        "local_1d",
        help="kind of self-attention",
        choices=choices.IMAGE_ATTENTION_TYPES,
    )
    add(
        "block_length",
        128,
        min=1,
        help="values per block of local_1d; each also attends to the block before",
    )
    add("block_height", 16, min=1, help="rows per block of local_2d")
    add("block_width", 16, min=1, help="values per row of such a block, channels included")
    add("d_model", 256, min=1, max=MAX_SIZE, help="width of the residual stream")
    add("d_ff", 2048, min=1, max=MAX_SIZE, help="hidden size of feed-forward layers")
    add("num_heads", 8, min=1, max=MAX_SIZE, help="attention heads")
    add(
        "num_kv_heads",
        0,
        min=0,
        max=MAX_SIZE,
        help="key/value heads (grouped-query attention); 0: num_heads",
    )
    add("d_kv", 64, min=1, max=MAX_SIZE, help="size per head")
    add("num_hidden_layers", 6, min=1, max=MAX_LAYERS, help="number of layers")
    add(
        "layer_prepostprocess_dropout",
        0.1,
        min=0,
        below=1,
        help="dropout of the embedding and of each block's output",
    )
    add("relu_dropout", 0.0, min=0, below=1, help="dropout in feed-forward layers")
    add(
        "recompute",
        "none",
        help="which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add("initializer_stddev", 0.02, min=0, help="standard deviation of initial embeddings")
    return hparams


@registry.register_hparams
def mtf_image_transformer_digits() -> HParams:
    """4 layers of 128 on one device: for images of 8 x 8 in 16 shades, tests and CPUs."""
    hparams = _declared()
    hparams.batch_size = 64
    hparams.image_shape = [8, 8, 1]
    hparams.block_length = 16
    hparams.block_height = 4
    hparams.block_width = 4
    hparams.d_model = 128
    hparams.d_ff = 256
    hparams.num_heads = 4
    hparams.d_kv = 32
    hparams.num_hidden_layers = 4
    hparams.learning_rate_constant = 2e-3
    hparams.learning_rate_warmup_steps = 100
    return hparams


@registry.register_hparams
def mtf_image_transformer_small() -> HParams:
    """4 layers of 256 for 32 x 32 pixels, on one device."""
    hparams = _declared()
    hparams.learning_rate_constant = 5e-4
    hparams.d_ff = 1024
    hparams.num_hidden_layers = 4
    return hparams


@registry.register_hparams
def mtf_image_transformer_large() -> HParams:
    """24 layers of 512 for 32 x 32 pixels, in blocks of 256 values, over 8 x 4 devices."""
    hparams = _declared()
    hparams.batch_size = 32
    hparams.mesh_shape = "data:8;model:4"
    hparams.learning_rate_constant = 5e-4
    hparams.block_length = 256
    hparams.d_model = 512
    hparams.d_ff = 8192
    hparams.num_hidden_layers = 24
    hparams.layer_prepostprocess_dropout = 0.3
    hparams.recompute = "layer"
    return hparams


@registry.register_hparams
def mtf_image_transformer_base() -> HParams:
    """6 layers of 256 for 32 x 32 pixels, in blocks of 128 values, over 8 devices."""
    hparams = _declared()
    hparams.mesh_shape = "data:8"
    hparams.optimizer = "adafactor"
    hparams.clip_grad_norm = 0.0
    hparams.learning_rate_schedule = "rsqrt_decay"
    hparams.relu_dropout = 0.2
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_single() -> HParams:
    """`mtf_image_transformer_base`, one image per step, on one device."""
    hparams = mtf_image_transformer_base()
    hparams.batch_size = 1
    hparams.mesh_shape = ""
    return hparams


@registry.register_hparams
def mtf_image_transformer_tiny() -> HParams:
    """4 layers of 128 in blocks of 32 values, over 2 devices."""
    hparams = mtf_image_transformer_base()
    hparams.batch_size = 4
    hparams.mesh_shape = "data:2"
    hparams.block_length = 32
    hparams.d_model = 128
    hparams.d_ff = 256
    hparams.num_heads = 4
    hparams.num_hidden_layers = 4
    return hparams


@registry.register_hparams
def mtf_image_transformer_single() -> HParams:
    """1 layer of 32 in blocks of 16 values, one image per step, on one device."""
    hparams = mtf_image_transformer_tiny()
    hparams.batch_size = 1
    hparams.mesh_shape = ""
    hparams.block_length = 16
    hparams.d_model = 32
    hparams.num_heads = 2
    hparams.num_hidden_layers = 1
    return hparams


@registry.register_hparams
def mtf_image_transformer_tiny_8gpu() -> HParams:
    """`mtf_image_transformer_tiny`, each layer split over 8 devices, so with 8 heads."""
    hparams = mtf_image_transformer_tiny()
    hparams.mesh_shape = "model:8"
    hparams.num_heads = 8
    return hparams


@registry.register_hparams
def mtf_image_transformer_tiny_spatial1d() -> HParams:
    """6 layers of 128 in blocks of 32 values, on one device."""
    hparams = mtf_image_transformer_tiny()
    hparams.mesh_shape = ""
    hparams.block_height = 8
    hparams.block_width = 8
    hparams.num_hidden_layers = 6
    return hparams


@registry.register_hparams
def mtf_image_transformer_tiny_spatial2d() -> HParams:
    """6 layers of 128 in blocks of 8 x 8 values; rows and columns over 2 x 2 devices."""
    hparams = mtf_image_transformer_tiny_spatial1d()
    hparams.mesh_shape = "rows:2;columns:2"
    hparams.layout = f"{_MEGATRON};{_SPACE}"
    hparams.attention_type = "local_2d"
    return hparams


@registry.register_hparams
def mtf_image_transformer_length_sharded() -> HParams:
    """`mtf_image_transformer_tiny`, the sequence of all values over 2 devices."""
    hparams = mtf_image_transformer_tiny()
    hparams.mesh_shape = "all:2"
    hparams.layout = "length:all"
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_cifar() -> HParams:
    """12 layers of 512 for 32 x 32 pixels, in blocks of 256 values, over 8 devices."""
    hparams = mtf_image_transformer_base()
    hparams.batch_size = 32
    hparams.block_length = 256
    hparams.d_model = 512
    hparams.num_heads = 4
    hparams.num_hidden_layers = 12
    hparams.layer_prepostprocess_dropout = 0.3
    return hparams


@registry.register_hparams
def mtf_image_transformer_cifar_4x() -> HParams:
    """`mtf_image_transformer_base_cifar` with four times the devices and four times the batch."""
    hparams = mtf_image_transformer_base_cifar()
    hparams.mesh_shape = "data:32"
    hparams.batch_size = 128
    return hparams


@registry.register_hparams
def mtf_image_transformer_cifar_mp_4x() -> HParams:
    """`mtf_image_transformer_base_cifar` with four times the devices, heads and d_ff."""
    hparams = mtf_image_transformer_base_cifar()
    hparams.mesh_shape = "data:8;model:4"
    hparams.num_heads = 8
    hparams.d_ff = 8192
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_imagenet() -> HParams:
    """The model of `cifar_4x` for 32 x 32 pixels of ImageNet, with less dropout."""
    hparams = mtf_image_transformer_cifar_4x()
    hparams.learning_rate_warmup_steps = 31_250
    hparams.layer_prepostprocess_dropout = 0.1
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_imagenet_mp() -> HParams:
    """The model of `cifar_mp_4x` for 32 x 32 pixels of ImageNet."""
    hparams = mtf_image_transformer_base_imagenet()
    hparams.batch_size = 32
    hparams.mesh_shape = "data:8;model:4"
    hparams.num_heads = 8
    hparams.d_ff = 8192
    return hparams


@registry.register_hparams
def mtf_image_transformer_imagenet_mp() -> HParams:
    """`mtf_image_transformer_base_imagenet_mp` under a short name."""
    return mtf_image_transformer_base_imagenet_mp()


@registry.register_hparams
def mtf_image_transformer_base_imagenet_mp64() -> HParams:
    """8 layers for 64 x 64 pixels, over 4 x 8 devices, so with 8 heads."""
    hparams = mtf_image_transformer_base_imagenet()
    hparams.batch_size = 8
    hparams.mesh_shape = "data:4;model:8"
    hparams.image_shape = [64, 64, 3]
    hparams.num_heads = 8
    hparams.num_hidden_layers = 8
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_imagenet_mp128() -> HParams:
    """4 layers for 128 x 128 pixels in blocks of 128 values, over 4 x 8 devices."""
    hparams = mtf_image_transformer_base_imagenet()
    hparams.batch_size = 8
    hparams.mesh_shape = "data:4;model:8"
    hparams.image_shape = [128, 128, 3]
    hparams.block_length = 128
    hparams.num_heads = 8
    hparams.d_ff = 4096
    hparams.num_hidden_layers = 4
    return hparams


@registry.register_hparams
def mtf_image_transformer_base_imagenet_mp_sp() -> HParams:
    """128 x 128 pixels, split along the sequence of values instead of the model."""
    hparams = mtf_image_transformer_base_imagenet_mp128()
    hparams.layout = "batch:data;length:model"
    return hparams
