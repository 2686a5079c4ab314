"""Sets of `mtf_resnet`, residual networks on images.

Those of tensor2tensor are at the end, with its values; docs/hparams_sets.md lists the differences.
"""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_SIZE, base_hparams


def _resnet() -> HParams:
    """Parent of the sets: ResNet-50 and its training, on one device."""
    hparams = base_hparams()
    hparams.batch_size = 32
    hparams.layout = "batch:data;height:rows;width:columns;filters:model"
    hparams.optimizer = "sgd"
    hparams.optimizer_momentum = 0.9
    hparams.weight_decay = 1e-4
    hparams.clip_grad_norm = 0.0
    hparams.learning_rate_constant = 0.0125
    hparams.learning_rate_warmup_steps = 5000
    add = hparams.add
    add(
        "stem",
        "imagenet",
        help="imagenet: 7x7 convolution and pooling (1/4 resolution); cifar: 3x3 convolution",
        choices=choices.STEMS,
    )
    add(
        "block",
        "bottleneck",
        help="basic: two 3x3 convolutions; bottleneck: 1x1, 3x3, 1x1",
        choices=choices.BLOCKS,
    )
    add(
        "layer_sizes",
        [3, 4, 6, 3],
        min=1,
        help="blocks per stage; each stage after the first halves the resolution",
    )
    add(
        "filter_sizes",
        [64, 64, 128, 256, 512],
        min=1,
        max=MAX_SIZE,
        help="channels of the stem and of each stage",
    )
    add(
        "num_partitioned_stages",
        3,
        min=0,
        help="stages in which a layout may split height and width; 7 rows seldom divide",
    )
    add(
        "norm_type",
        "batch",
        help="kind of normalization after convolutions",
        choices=choices.CONVOLUTION_NORM_TYPES,
    )
    add("norm_momentum", 0.9, min=0, below=1, help="momentum of batch norm's running averages")
    add("norm_epsilon", 1e-5, above=0, help="epsilon added to the variance")
    add("norm_groups", 32, min=1, help="groups of group norm")
    add(
        "label_smoothing",
        0.0,
        min=0,
        below=1,
        help="label smoothing: probability spread over the other classes",
    )
    return hparams


@registry.register_hparams
def mtf_resnet_50() -> HParams:
    """ResNet-50 v1.5 for 224 x 224 pixels: 25.6 million parameters.

    The learning rate is 0.1 per 256 images.
    """
    hparams = _resnet()
    hparams.batch_size = 256
    hparams.learning_rate_constant = 0.1
    hparams.learning_rate_warmup_steps = 25000
    hparams.label_smoothing = 0.1
    return hparams


@registry.register_hparams
def mtf_resnet_base_spatial() -> HParams:
    """ResNet-50 v1.5, 32 images over 8 devices, each image split into four slices."""
    hparams = _resnet()
    hparams.mesh_shape = "data:2;rows:2;columns:2"
    return hparams


@registry.register_hparams
def mtf_resnet_cifar() -> HParams:
    """ResNet-20 for 32 x 32 pixels (arXiv:1512.03385, section 4.2): 0.27 million parameters."""
    hparams = _resnet()
    hparams.batch_size = 128
    hparams.stem = "cifar"
    hparams.block = "basic"
    hparams.layer_sizes = [3, 3, 3]
    hparams.filter_sizes = [16, 16, 32, 64]
    hparams.learning_rate_constant = 0.1
    hparams.learning_rate_warmup_steps = 400
    return hparams


@registry.register_hparams
def mtf_resnet_digits() -> HParams:
    """Two stages of two basic blocks on one device: for images of 8 x 8, tests and CPUs."""
    hparams = mtf_resnet_cifar()
    hparams.batch_size = 64
    hparams.layer_sizes = [2, 2]
    hparams.filter_sizes = [16, 16, 32]
    hparams.num_partitioned_stages = 2
    hparams.optimizer = "adam"
    hparams.learning_rate_constant = 3e-3
    hparams.learning_rate_warmup_steps = 50
    return hparams


@registry.register_hparams
def mtf_resnet_small() -> HParams:
    """ResNet-18 for 224 x 224 pixels (arXiv:1512.03385, table 1): 11.7 million parameters."""
    hparams = mtf_resnet_50()
    hparams.block = "basic"
    hparams.layer_sizes = [2, 2, 2, 2]
    return hparams


@registry.register_hparams
def mtf_resnet_large() -> HParams:
    """ResNet-152 for 224 x 224 pixels (arXiv:1512.03385, table 1): 60.2 million parameters."""
    hparams = mtf_resnet_50()
    hparams.layer_sizes = [3, 8, 36, 3]
    return hparams


@registry.register_hparams
def mtf_resnet_base() -> HParams:
    """tensor2tensor's: the blocks of ResNet-50 for 32 x 32 pixels, 32 images over 8 devices."""
    hparams = _resnet()
    hparams.mesh_shape = "data:8"
    hparams.stem = "cifar"
    hparams.num_partitioned_stages = 4
    hparams.weight_decay = 0.0
    hparams.optimizer = "adafactor"
    hparams.learning_rate_schedule = "rsqrt_decay"
    hparams.learning_rate_warmup_steps = 10_000
    return hparams


@registry.register_hparams
def mtf_resnet_base_single() -> HParams:
    """tensor2tensor's: `mtf_resnet_base` on one device."""
    hparams = mtf_resnet_base()
    hparams.mesh_shape = ""
    return hparams


@registry.register_hparams
def mtf_resnet_base_cifar() -> HParams:
    """tensor2tensor's: `mtf_resnet_base` over 32 devices, with a shorter warm-up."""
    hparams = mtf_resnet_base()
    hparams.mesh_shape = "data:32"
    hparams.learning_rate_warmup_steps = 4000
    return hparams


@registry.register_hparams
def mtf_resnet_tiny() -> HParams:
    """tensor2tensor's: three stages of 1, 2 and 3 bottlenecks of 64, over 2 devices."""
    hparams = mtf_resnet_base()
    hparams.batch_size = 16
    hparams.mesh_shape = "data:2"
    hparams.layer_sizes = [1, 2, 3]
    hparams.filter_sizes = [64, 64, 64, 64]
    hparams.num_partitioned_stages = 3
    return hparams


@registry.register_hparams
def mtf_resnet_single() -> HParams:
    """tensor2tensor's: `mtf_resnet_tiny`, one image per step, on one device."""
    hparams = mtf_resnet_tiny()
    hparams.batch_size = 1
    hparams.mesh_shape = ""
    return hparams
