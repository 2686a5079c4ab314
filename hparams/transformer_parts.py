"""The hyperparameters of all transformer sets."""

from __future__ import annotations

from t2tp import choices
from t2tp.hparam import HParams
from t2tp.hparams.base import MAX_LAYERS, MAX_SIZE, base_hparams, declare_adapters


def base_transformer() -> HParams:
    """Parent of the transformer sets: 12 layers of 768, pre-norm, learned positions."""
    hparams = base_hparams()
    hparams.batch_size = 32
    hparams.max_length = 1024
    hparams.layout = "batch:data;heads:model;d_ff:model;vocab:model"
    hparams.weight_decay = 0.1
    hparams.learning_rate_constant = 6e-4
    hparams.learning_rate_warmup_steps = 2000
    add = hparams.add
    add("d_model", 768, min=1, max=MAX_SIZE, help="width of the residual stream")
    add("d_ff", 3072, min=1, max=MAX_SIZE, help="hidden size of feed-forward layers")
    add("num_heads", 12, min=1, max=MAX_SIZE, help="attention heads")
    add(
        "num_kv_heads",
        0,
        min=0,
        max=MAX_SIZE,
        help="key/value heads (grouped-query attention); 0: num_heads",
    )
    add("d_kv", 64, min=1, max=MAX_SIZE, help="size per head")
    add("num_hidden_layers", 12, min=1, max=MAX_LAYERS, help="number of layers")
    add(
        "vocab_size",
        0,
        min=0,
        max=2**31 - 1,
        help="tokens that may be predicted, if more than the problem has; 0: those of the problem",
    )
    add(
        "bos_token_id",
        0,
        min=0,
        max=2**31 - 1,
        help="input token of the first target of a document (in T5: decoder_start_token_id)",
    )
    add("initializer_stddev", 0.02, min=0, help="standard deviation of initial embeddings")
    add("tie_embeddings", True, help="whether logits use the embedding matrix")
    add("scale_embeddings", False, help="whether to multiply embeddings by sqrt(d_model)")
    add(
        "scale_decoder_outputs",
        False,
        help="whether logits are of the last layer's output divided by sqrt(d_model)",
    )
    add(
        "label_smoothing",
        0.0,
        min=0,
        below=1,
        help="label smoothing: probability spread over the other tokens",
    )
    add("z_loss", 0.0, min=0, help="weight of log(Z)**2 in the loss; PaLM uses 1e-4")
    _declare_blocks(hparams)
    _declare_attention(hparams)
    declare_adapters(hparams)
    return hparams


def base_encoder_decoder() -> HParams:
    """Parent of the encoder-decoder sets."""
    hparams = base_transformer()
    hparams.add("num_encoder_layers", 0, min=0, max=MAX_LAYERS, help="0: num_hidden_layers")
    hparams.add("num_decoder_layers", 0, min=0, max=MAX_LAYERS, help="0: num_hidden_layers")
    hparams.add(
        "shared_embedding",
        False,
        help="whether inputs and targets share a table while logits have their own (T5 v1.1); with"
        " tie_embeddings all three do",
    )
    return hparams


def declare_experts(hparams: HParams) -> None:
    """Declares the mixture of experts; each expert has a hidden layer of d_ff."""
    add = hparams.add
    add("num_experts", 8, min=1, max=MAX_SIZE, help="experts per expert layer")
    add("moe_every", 2, min=1, help="one in this many layers has experts")
    add(
        "moe_gating",
        "top_1",
        help="top_1 (Switch), top_2 (GShard) or expert_choice (encoders)",
        choices=choices.GATINGS,
    )
    add(
        "moe_capacity_factor_train",
        1.25,
        above=0,
        help="expert capacity in training, relative to a perfectly balanced load",
    )
    add("moe_capacity_factor_eval", 2.0, above=0, help="expert capacity in evaluation and decoding")
    add("moe_group_size", 0, min=0, help="max tokens per routing group; 0: one row per group")
    add("moe_load_balance_loss", 0.01, min=0, help="weight of the load-balancing loss")
    add("moe_router_z_loss", 0.001, min=0, help="weight of the router's z-loss")


def _declare_blocks(hparams: HParams) -> None:
    add = hparams.add
    add(
        "mlp",
        "relu",
        help="feed-forward activation; gelu is the tanh approximation; swiglu and geglu are gated",
        choices=choices.MLPS,
    )
    add("use_bias", False, help="biases after all matrices of attention and feed-forward layers")
    add("attention_bias", False, help="biases after the matrices of attention alone")
    add("qkv_bias", False, help="biases of queries, keys and values alone")
    add("mlp_bias", False, help="biases after the matrices of feed-forward layers alone")
    add(
        "norm_type",
        "rms",
        help="kind of normalization; rms_unit_offset multiplies by 1 + scale",
        choices=choices.NORM_TYPES,
    )
    add(
        "norm_position",
        "pre",
        help="normalize before (pre) or after (post) each block",
        choices=choices.NORM_POSITIONS,
    )
    add("norm_epsilon", 1e-6, above=0, help="epsilon added to the variance")
    add(
        "layer_prepostprocess_dropout",
        0.0,
        min=0,
        below=1,
        help="dropout of the embeddings and of each block's output",
    )
    add(
        "layer_prepostprocess_dropout_broadcast_dims",
        [],
        type=list[str],
        help="dimensions along which the dropout mask is shared, such as length",
        choices=("batch", "length", "d_model"),
    )
    add("relu_dropout", 0.0, min=0, below=1, help="dropout between the two feed-forward layers")
    add(
        "recompute",
        "none",
        help="which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add(
        "sequence_parallel",
        False,
        help="sequence parallelism: between blocks length is residual_length, for layouts to split",
    )


def _declare_attention(hparams: HParams) -> None:
    add = hparams.add
    add(
        "position",
        "learned",
        help="position encoding",
        choices=choices.POSITIONS,
    )
    add("rotary_base", 10000.0, above=0, help="base of rotary frequencies")
    add(
        "rotary_scaling_factor",
        1.0,
        min=1,
        help="factor by which low rotary frequencies are reduced (Llama 3.1); 1: none",
    )
    add(
        "rotary_low_freq_factor",
        1.0,
        above=0,
        help="frequencies of at most this many periods in rotary_original_length are reduced",
    )
    add(
        "rotary_high_freq_factor",
        4.0,
        above=0,
        help="frequencies of at least this many periods in rotary_original_length are kept",
    )
    add(
        "rotary_original_length",
        8192,
        min=1,
        max=MAX_SIZE,
        help="sequence length of the original training",
    )
    add("relative_buckets", 32, min=4, help="number of relative-position buckets")
    add("relative_max_distance", 128, min=1, help="distance from which on all share one bucket")
    add(
        "attention_type",
        "full",
        help="kind of self-attention; local attends to attention_window positions",
        choices=choices.ATTENTION_TYPES,
    )
    add(
        "attention_method",
        "auto",
        help="how attention is computed: dense, blockwise, or ring (a split length goes round the"
        " devices); auto: dense or blockwise, by the length",
        choices=choices.ATTENTION_METHODS,
    )
    add("attention_window", 256, min=1, help="window of local attention, the query included")
    add(
        "scale_attn_weights",
        True,
        help="whether scores of attention are divided by sqrt(d_kv); in T5 they are not",
    )
    add("attention_dropout", 0.0, min=0, below=1, help="dropout of attention weights")
