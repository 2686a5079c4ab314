"""Registered models, written in named dimensions.

A model is a class registered by its name. Its configuration is an hparams set and the problem's
vocabulary sizes. Its method `loss` builds the loss of a batch of features. Subclasses of
`AutoregressiveModel` also decode: `prefill` fills a state from a prompt, and `decode_step` predicts
one token per row. Subclasses of `ImageClassifier` only implement the logits of the classes.

A model names dimensions such as `batch`, `length`, `d_model`, `heads`, `d_ff` and `vocab`. A layout
assigns dimensions to mesh axes, so the same code is data-parallel, tensor-parallel or both.
"""

from t2tp.models import (  # noqa: F401  (they register themselves)
    image_transformer,
    mlp,
    resnet,
    transformer,
    transformer_encoder,
    transformer_lm,
    vit,
)
