"""What every hparams set has: the batch, the mesh and the optimizer."""

from __future__ import annotations

from t2tp.hparam import HParams


def base_hparams() -> HParams:
    """Parent of all sets; declares what the trainer itself reads."""
    hparams = HParams()
    add = hparams.add
    add("batch_size", 16, help="sequences a step, over all devices")
    add("max_length", 256, help="tokens a sequence")
    add(
        "mesh_shape",
        "",
        help="axes of the mesh and their sizes, as in data:2;model:4; empty: one device",
    )
    add("layout", "batch:data", help="dimension:axis rules, as in batch:data;d_ff:model")
    add(
        "activation_dtype",
        "float32",
        help="of activations and of products: float32, bfloat16 or float16; variables stay float32",
    )
    add("optimizer", "adam", help="a registered optimizer")
    add("optimizer_adam_beta1", 0.9)
    add("optimizer_adam_beta2", 0.98)
    add("optimizer_adam_epsilon", 1e-9)
    add("optimizer_momentum", 0.0, help="of sgd")
    add("weight_decay", 0.0, help="of matrices, as a share of the learning rate")
    add("clip_grad_norm", 1.0, help="largest global norm of a gradient; 0: any")
    add("learning_rate_schedule", "constant*linear_warmup*cosine_decay", help="factors joined by *")
    add("learning_rate_constant", 1e-3)
    add("learning_rate_warmup_steps", 100)
    add("learning_rate_decay_steps", 0, help="0: to the end of the training")
    return hparams
