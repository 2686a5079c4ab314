"""Sets of `mtf_resnet`, residual networks on images.

Those of tensor2tensor are at the end, with its values; docs/hparams_sets.md lists the differences.
"""

from __future__ import annotations

from t2tp import choices, registry
from t2tp.hparam import HParams
from t2tp.hparams.base import RATE, SIZE, base_hparams, bounded


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
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    add(
        "stem",
        "imagenet",
        "imagenet: 7x7 convolution and pooling (1/4 resolution); cifar: 3x3 convolution",
        choices=choices.STEMS,
    )
    add(
        "block",
        "bottleneck",
        "basic: two 3x3 convolutions; bottleneck: 1x1, 3x3, 1x1",
        choices=choices.BLOCKS,
    )
    add(
        "layer_sizes",
        [3, 4, 6, 3],
        "blocks per stage; each stage after the first halves the resolution",
        min=1,
    )
    size("filter_sizes", [64, 64, 128, 256, 512], "channels of the stem and of each stage")
    add(
        "num_partitioned_stages",
        3,
        "stages in which a layout may split height and width; 7 rows seldom divide",
        min=0,
    )
    add(
        "norm_type",
        "batch",
        "kind of normalization after convolutions",
        choices=choices.CONVOLUTION_NORM_TYPES,
    )
    rate("norm_momentum", 0.9, "momentum of batch norm's running averages")
    add("norm_epsilon", 1e-5, "epsilon added to the variance", above=0)
    add("norm_groups", 32, "groups of group norm", min=1)
    rate("label_smoothing", 0.1, "label smoothing: probability spread over the other classes")
    return hparams
