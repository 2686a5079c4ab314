"""What the hparams sets of all transformers declare."""

from __future__ import annotations

from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, MAX_SIZE, base_hparams


def base_transformer() -> HParams:
    """Parent of the sets of transformers: 12 layers of 768, pre-norm, learned positions."""
    hparams = base_hparams()
    hparams.batch_size = 32
    hparams.max_length = 1024
    hparams.layout = "batch:data;heads:model;d_ff:model;vocab:model"
    hparams.weight_decay = 0.1
    hparams.learning_rate_constant = 6e-4
    hparams.learning_rate_warmup_steps = 2000
    add = hparams.add
    add("d_model", 768, min=1, max=MAX_SIZE, help="size of the activations between blocks")
    add("d_ff", 3072, min=1, max=MAX_SIZE, help="size inside of feed-forward")
    add("num_heads", 12, min=1, max=MAX_SIZE, help="heads of attention")
    add("num_kv_heads", 0, min=0, max=MAX_SIZE, help="heads of keys and values; 0: num_heads")
    add("d_kv", 64, min=1, max=MAX_SIZE, help="size of a head")
    add("num_hidden_layers", 12, min=1, max=MAX_LAYERS, help="layers of the stack")
    add(
        "vocab_divisor",
        128,
        min=1,
        max=MAX_SIZE,
        help="the vocabulary is rounded up to a multiple of this, so that meshes divide it",
    )
    add("initializer_stddev", 0.02, min=0, help="of the embeddings")
    add("tie_embeddings", True, help="whether logits are products with the embeddings")
    add("scale_embeddings", False, help="whether embeddings are multiplied by sqrt(d_model)")
    add(
        "label_smoothing",
        0.0,
        min=0,
        below=1,
        help="probability that a target gives to all other classes",
    )
    add("z_loss", 0.0, min=0, help="times log(Z)**2 of the predictions; PaLM has 1e-4")
    _declare_blocks(hparams)
    _declare_attention(hparams)
    return hparams


def base_encoder_decoder() -> HParams:
    """Parent of the sets of encoder-decoders."""
    hparams = base_transformer()
    hparams.add("num_encoder_layers", 0, min=0, max=MAX_LAYERS, help="0: num_hidden_layers")
    hparams.add("num_decoder_layers", 0, min=0, max=MAX_LAYERS, help="0: num_hidden_layers")
    hparams.add(
        "shared_embedding",
        False,
        help="whether inputs and targets share a table where logits have their own (T5 v1.1); with"
        " tie_embeddings all three do",
    )
    return hparams


def declare_experts(hparams: HParams) -> None:
    """Declares the mixture of experts; a layer's experts each have a hidden layer of d_ff."""
    add = hparams.add
    add("num_experts", 8, min=1, max=MAX_SIZE, help="of a layer that has experts")
    add("moe_every", 2, min=1, help="every so many-th layer has experts")
    add(
        "moe_gating",
        "top_1",
        help="top_1 (Switch), top_2 (GShard) or expert_choice (encoders)",
        choices=("top_1", "top_2", "expert_choice"),
    )
    add(
        "moe_capacity_factor_train",
        1.25,
        above=0,
        help="places of an expert, by what it would need if all were asked equally often",
    )
    add("moe_capacity_factor_eval", 2.0, above=0, help="the same when not training")
    add("moe_group_size", 0, min=0, help="tokens that share the places, at most; 0: those of a row")
    add("moe_load_balance_loss", 0.01, min=0, help="weight of the load-balancing loss")
    add("moe_router_z_loss", 0.001, min=0, help="weight of the router's z-loss")


def small(hparams: HParams) -> None:
    """6 layers of 384."""
    hparams.max_length = 512
    hparams.d_model = 384
    hparams.d_ff = 1536
    hparams.num_heads = 8
    hparams.d_kv = 48
    hparams.num_hidden_layers = 6
    hparams.learning_rate_constant = 1e-3
    hparams.learning_rate_warmup_steps = 500


def tiny(hparams: HParams) -> None:
    """2 layers of 128: for tests, demos and CPUs."""
    hparams.batch_size = 16
    hparams.max_length = 128
    hparams.d_model = 128
    hparams.d_ff = 512
    hparams.num_heads = 4
    hparams.d_kv = 32
    hparams.num_hidden_layers = 2
    hparams.learning_rate_constant = 3e-3
    hparams.learning_rate_warmup_steps = 100


def large(hparams: HParams) -> None:
    """24 layers of 1024."""
    hparams.d_model = 1024
    hparams.d_ff = 4096
    hparams.num_heads = 16
    hparams.num_hidden_layers = 24
    hparams.learning_rate_constant = 3e-4


def _declare_blocks(hparams: HParams) -> None:
    add = hparams.add
    add(
        "mlp",
        "relu",
        help="activation of feed-forward; gelu is its tanh form; swiglu and geglu have a gate",
        choices=("relu", "gelu", "gelu_erf", "silu", "swiglu", "geglu"),
    )
    add("use_bias", False, help="after each matrix of attention and feed-forward")
    add("norm_type", "rms", help="of blocks", choices=("rms", "layer"))
    add("norm_position", "pre", help="before or after each block", choices=("pre", "post"))
    add("norm_epsilon", 1e-6, above=0, help="added to the variance")
    add(
        "layer_prepostprocess_dropout",
        0.0,
        min=0,
        below=1,
        help="of the embeddings and of each block's output",
    )
    add(
        "layer_prepostprocess_dropout_broadcast_dims",
        [],
        type=list[str],
        help="dimensions along which one decision is made for all, such as length",
        choices=("batch", "length", "d_model"),
    )
    add("relu_dropout", 0.0, min=0, below=1, help="between the matrices of feed-forward")
    add("share_layers", False, help="whether all layers are one (universal transformer)")
    add(
        "recompute",
        "none",
        help="whose activations are computed again, not kept",
        choices=("none", "layer", "attention", "feed_forward"),
    )
    add(
        "sequence_parallel",
        False,
        help="whether length is residual_length between blocks, where a layout may then split it",
    )


def _declare_attention(hparams: HParams) -> None:
    add = hparams.add
    add(
        "position",
        "learned",
        help="how tokens are told their positions",
        choices=("learned", "sinusoidal", "rotary", "relative", "none"),
    )
    add("rotary_base", 10000.0, above=0, help="of rotary positions")
    add(
        "rotary_scaling_factor",
        1.0,
        min=1,
        help="by which slow rotary pairs are slowed down, as in Llama 3.1; 1: none are",
    )
    add(
        "rotary_low_freq_factor",
        1.0,
        above=0,
        help="pairs with at most so many turns in rotary_original_length are slowed down",
    )
    add(
        "rotary_high_freq_factor",
        4.0,
        above=0,
        help="pairs with at least so many turns in rotary_original_length are not",
    )
    add(
        "rotary_original_length",
        8192,
        min=1,
        max=MAX_SIZE,
        help="tokens of the sequences that were trained on before",
    )
    add(
        "relative_buckets", 32, min=4, help="ranges of distances that relative positions tell apart"
    )
    add("relative_max_distance", 128, min=1, help="from here on all distances are alike")
    add(
        "attention_type",
        "full",
        help="of self-attention; compressed takes turns with local",
        choices=("full", "local", "compressed"),
    )
    add("attention_window", 256, min=1, help="positions that local attention sees, itself included")
    add(
        "compression_factor", 3, min=2, help="positions that become one key of compressed attention"
    )
    add("attention_dropout", 0.0, min=0, below=1, help="of the attention weights")
