"""The hyperparameters of all transformer sets."""

from __future__ import annotations

from t2tp import choices
from t2tp.hparam import HParams
from t2tp.hparams.base import (
    MAX_LAYERS,
    MAX_SIZE,
    RATE,
    SIZE,
    base_hparams,
    bounded,
    declare_adapters,
)


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
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    size("d_model", 768, "width of the residual stream")
    size("d_ff", 3072, "hidden size of feed-forward layers")
    size("num_heads", 12, "attention heads")
    add(
        "num_kv_heads",
        0,
        "key/value heads (grouped-query attention); 0: num_heads",
        min=0,
        max=MAX_SIZE,
    )
    size("d_kv", 64, "size per head")
    add("d_v", 0, "size of the values per head; 0: d_kv", min=0, max=MAX_SIZE)
    add("num_hidden_layers", 12, "number of layers", min=1, max=MAX_LAYERS)
    add(
        "vocab_size",
        0,
        "tokens that may be predicted, if more than the problem has; 0: the problem's",
        min=0,
        max=2**31 - 1,
    )
    add(
        "bos_token_id",
        0,
        "input token of the first target of a document (in T5: decoder_start_token_id)",
        min=0,
        max=2**31 - 1,
    )
    add(
        "initializer",
        "fan_in",
        "initial values of matrices: by their inputs (fan_in), inputs and outputs (fan_avg,"
        " spectral), or initializer_stddev (normal)",
        choices=choices.INITIALIZERS,
    )
    add(
        "initializer_stddev",
        0.02,
        "standard deviation of initial embeddings, and of matrices with initializer=normal",
        min=0,
    )
    add("embedding_norm", False, "normalize the embeddings before the first layer")
    add("tie_embeddings", True, "whether logits use the embedding matrix")
    add("scale_embeddings", False, "whether to multiply embeddings by sqrt(d_model)")
    add("embedding_multiplier", 1.0, "further factor of embeddings", above=0)
    add(
        "scale_decoder_outputs",
        False,
        "whether logits are of the last layer's output divided by sqrt(d_model)",
    )
    add("logits_divisor", 1.0, "what logits are divided by", above=0)
    add(
        "logits_soft_cap",
        0.0,
        "logits z become cap * tanh(z / cap), as in Gemma 2; 0: no cap",
        min=0,
    )
    rate("label_smoothing", 0.0, "label smoothing: probability spread over the other tokens")
    add("z_loss", 0.0, "weight of log(Z)**2 in the loss; PaLM uses 1e-4", min=0)
    add(
        "loss_chunk",
        0,
        "max tokens of a device whose logits are in memory at once in training; 0: chosen, or all"
        " if the logits are small; -1: all",
        min=-1,
        max=MAX_SIZE,
    )
    _declare_blocks(hparams)
    _declare_attention(hparams)
    declare_adapters(hparams)
    return hparams


def base_encoder_decoder() -> HParams:
    """Parent of the encoder-decoder sets."""
    hparams = base_transformer()
    hparams.add("num_encoder_layers", 0, "0: num_hidden_layers", min=0, max=MAX_LAYERS)
    hparams.add("num_decoder_layers", 0, "0: num_hidden_layers", min=0, max=MAX_LAYERS)
    hparams.add(
        "shared_embedding",
        False,
        "whether inputs and targets share a table while logits have their own (T5 v1.1); with"
        " tie_embeddings all three do",
    )
    return hparams


def declare_experts(hparams: HParams) -> None:
    """Declares the mixture of experts; each expert has a hidden layer of d_ff."""
    add = hparams.add
    size = bounded(hparams, SIZE)
    size("num_experts", 8, "experts per expert layer")
    add("moe_every", 2, "one in this many layers has experts", min=1)
    add(
        "moe_gating",
        "top_1",
        "top_1 (Switch), top_2 (GShard), top_k (moe_top_k experts) or expert_choice (encoders)",
        choices=choices.GATINGS,
    )
    add("moe_top_k", 2, "experts per token of moe_gating=top_k", min=1, max=MAX_SIZE)
    add("moe_normalize_gates", True, "whether a token's gates add up to 1 with top_k")
    add("moe_gate_scale", 1.0, "factor of the gates with top_k", above=0)
    add(
        "moe_router_scores",
        "softmax",
        "scores of the experts: their softmax, or a sigmoid of each (DeepSeek-V3)",
        choices=choices.ROUTER_SCORES,
    )
    add("moe_router_bias", False, "whether the router has a bias")
    add(
        "moe_balance_rate",
        0.0,
        "step of the terms that balance experts without a loss (arXiv:2408.15664 has 0.001); 0:"
        " there are none",
        min=0,
    )
    add(
        "moe_shared_d_ff",
        0,
        "hidden size of the expert that all tokens use; 0: none",
        min=0,
        max=MAX_SIZE,
    )
    add(
        "moe_dispatch",
        "capacity",
        "capacity: experts drop tokens above their capacity; dropless: they compute all tokens",
        choices=choices.DISPATCHES,
    )
    add(
        "moe_capacity_factor_train",
        1.25,
        "expert capacity in training, relative to a perfectly balanced load",
        above=0,
    )
    add("moe_capacity_factor_eval", 2.0, "expert capacity in evaluation and decoding", above=0)
    add("moe_group_size", 0, "max tokens per routing group; 0: one row per group", min=0)
    add("moe_load_balance_loss", 0.01, "weight of the load-balancing loss", min=0)
    add("moe_router_z_loss", 0.001, "weight of the router's z-loss", min=0)


def _declare_blocks(hparams: HParams) -> None:
    add = hparams.add
    rate = bounded(hparams, RATE)
    add(
        "mlp",
        "relu",
        "feed-forward activation; gelu is the tanh approximation; swiglu and geglu are gated",
        choices=choices.MLPS,
    )
    add("use_bias", False, "biases after all matrices of attention and feed-forward layers")
    add("attention_bias", False, "biases after the matrices of attention alone")
    add("qkv_bias", False, "biases of queries, keys and values alone")
    add("mlp_bias", False, "biases after the matrices of feed-forward layers alone")
    add(
        "norm_type",
        "rms",
        "kind of normalization; rms_unit_offset multiplies by 1 + scale",
        choices=choices.NORM_TYPES,
    )
    add(
        "norm_position",
        "pre",
        "what each block normalizes: its input (pre), its output (output), both, or the sum (post)",
        choices=choices.NORM_POSITIONS,
    )
    add("residual_multiplier", 1.0, "factor of each block's output", above=0)
    add("norm_epsilon", 1e-6, "epsilon added to the variance", above=0)
    rate(
        "layer_prepostprocess_dropout", 0.0, "dropout of the embeddings and of each block's output"
    )
    add(
        "layer_prepostprocess_dropout_broadcast_dims",
        [],
        "dimensions along which the dropout mask is shared, such as length",
        type=list[str],
        choices=("batch", "length", "d_model"),
    )
    rate("relu_dropout", 0.0, "dropout between the two feed-forward layers")
    add(
        "recompute",
        "none",
        "which layers recompute their activations in the backward pass",
        choices=choices.RECOMPUTE,
    )
    add(
        "sequence_parallel",
        False,
        "sequence parallelism: between blocks length is residual_length, for layouts to split",
    )


def _declare_attention(hparams: HParams) -> None:
    add = hparams.add
    size = bounded(hparams, SIZE)
    rate = bounded(hparams, RATE)
    add("position", "learned", "position encoding", choices=choices.POSITIONS)
    add("rotary_base", 10000.0, "base of rotary frequencies", above=0)
    add(
        "local_rotary_base",
        0.0,
        "rotary base of layers with a window, whose frequencies are not scaled; 0: as other layers",
        min=0,
    )
    add("rotary_fraction", 1.0, "fraction of a head's elements to rotate", above=0, max=1)
    add(
        "rotary_scaling",
        "llama3",
        "how rotary_scaling_factor reduces frequencies: low ones (llama3, yarn) or all (linear)",
        choices=choices.ROTARY_SCALINGS,
    )
    add("rotary_scaling_factor", 1.0, "factor by which frequencies are reduced; 1: none", min=1)
    add(
        "rotary_attention_factor",
        0.0,
        "factor of rotated queries and keys with yarn; 0: 1 + 0.1 ln(rotary_scaling_factor)",
        min=0,
    )
    add(
        "rotary_low_freq_factor",
        1.0,
        "frequencies of at most this many periods in rotary_original_length are reduced",
        above=0,
    )
    add(
        "rotary_high_freq_factor",
        4.0,
        "frequencies of at least this many periods in rotary_original_length are kept",
        above=0,
    )
    size("rotary_original_length", 8192, "sequence length of the original training")
    add("relative_buckets", 32, "number of relative-position buckets", min=4)
    add("relative_max_distance", 128, "distance from which on all share one bucket", min=1)
    add(
        "attention_type",
        "full",
        "kind of self-attention; local attends to attention_window positions",
        choices=choices.ATTENTION_TYPES,
    )
    add(
        "layer_pattern",
        [],
        "kinds of layers, which repeat: full or local attention; with _nope without rotary"
        " positions; []: all as attention_type says",
        type=list[str],
        choices=choices.LAYER_KINDS,
    )
    add(
        "qk_norm",
        "none",
        "norm of queries and keys: of each head, or of the projection with all heads",
        choices=choices.QK_NORMS,
    )
    add(
        "attention_method",
        "auto",
        "how attention is computed: dense, blockwise, or ring (a split length goes round the"
        " devices); auto: dense or blockwise, by the length",
        choices=choices.ATTENTION_METHODS,
    )
    add("attention_window", 256, "window of local attention, the query included", min=1)
    add("attention_multiplier", 0.0, "factor of attention scores; 0: 1/sqrt(d_kv); T5: 1", min=0)
    add(
        "attention_soft_cap",
        0.0,
        "scores s become cap * tanh(s / cap), as in Gemma 2; 0: no cap",
        min=0,
    )
    add(
        "attention_sinks",
        False,
        "whether the softmax of each head has a learned logit without a value, as in gpt-oss",
    )
    rate("attention_dropout", 0.0, "dropout of attention weights")
