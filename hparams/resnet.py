"""Sets of `mtf_resnet`, residual networks on images.

Those of tensor2tensor are at the end, with its values; docs/hparams_sets.md lists the differences.
"""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_SIZE, base_hparams


@registry.register_hparams
def mtf_resnet_50() -> HParams:
    """ResNet-50 v1.5 for 224 x 224 pixels: 25.6 million parameters.

    The learning rate is 0.1 per 256 images.
    """
    hparams = base_hparams()
    hparams.batch_size = 256
    hparams.layout = "batch:data;height:rows;width:columns;filters:model"
    hparams.optimizer = "sgd"
    hparams.optimizer_momentum = 0.9
    hparams.weight_decay = 1e-4
    hparams.clip_grad_norm = 0.0
    hparams.learning_rate_constant = 0.1
    hparams.learning_rate_warmup_steps = 25000
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
        0.1,
        min=0,
        below=1,
        help="label smoothing: probability spread over the other classes",
    )
    return hparams
