"""GPT-2 in t2tp: the registered `transformer_lm`, with the hparams that make it that model."""

from __future__ import annotations

import gpt
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry

on_gpu = bool(tf.config.list_physical_devices("GPU"))
if on_gpu:
    tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("GPU")[0], True)


def make(sizes: gpt.Sizes, length: int):
    """Returns the hparams and the model."""
    hparams = registry.hparams("transformer_lm_plain")
    hparams.parse(
        f"d_model={sizes.d_model},d_ff={sizes.d_ff},num_heads={sizes.heads},d_kv={sizes.d_kv},"
        f"num_hidden_layers={sizes.layers},max_length={length},mlp=gelu,norm_type=layer,"
        f"norm_epsilon={gpt.NORM_EPSILON},use_bias=True,activation_dtype=bfloat16,"
        f"clip_grad_norm={gpt.CLIP_NORM},optimizer=adam,weight_decay={gpt.WEIGHT_DECAY},"
        f"learning_rate_schedule=constant,learning_rate_constant={gpt.LEARNING_RATE},"
        f"optimizer_adam_beta1={gpt.BETA1},optimizer_adam_beta2={gpt.BETA2},"
        f"optimizer_adam_epsilon={gpt.EPSILON}"
    )
    return hparams, registry.model("transformer_lm")(hparams, {"targets": sizes.vocab})


def load(program: t2tp.Program, sizes: gpt.Sizes, length: int) -> None:
    """Sets the weights to the initial values of all peers."""
    parts = {"out": "attention/output", "up": "feed_forward/input", "down": "feed_forward/output"}
    for name, shape in gpt.weight_shapes(sizes, length).items():
        layer, _, weight = name.rpartition("/")
        name_here = name
        if layer:
            name_here = f"layer_{int(layer):02d}/{parts.get(weight, f'attention/{weight}')}"
        program.variables[name_here].slice_of(0).assign(gpt.initial_value(name, shape))


def peak_bytes() -> int:
    """Returns the peak of the card's memory."""
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] if on_gpu else 0


VERSION = f"t2tp on tensorflow {tf.__version__}"
