"""The allowed values of hyperparameters with choices.

Hparams sets use them in declarations; layers and models check their arguments against them.
"""

PRECISIONS = ("float32", "bfloat16", "float16")
BATCH_SIZE_UNITS = (
    "sequences_per_batch",
    "tokens_per_batch",
    "sequences_per_replica",
    "tokens_per_replica",
)

# Transformers.
# Feed-forward network -> activation of the layer or its gate, in `t2tp.ops.activations` or `mtf`.
PLAIN_MLPS = {"relu": "relu", "gelu": "gelu", "gelu_erf": "gelu_erf", "silu": "swish"}
GATED_MLPS = {"swiglu": "swish", "geglu": "gelu", "clamped_swiglu": "clamped_swiglu"}
MLPS = (*PLAIN_MLPS, *GATED_MLPS)
INITIALIZERS = ("fan_in", "fan_avg", "spectral", "normal")
NORM_TYPES = ("rms", "rms_unit_offset", "layer")
NORM_POSITIONS = ("pre", "post", "output", "both")
QK_NORMS = ("none", "head", "projection")
RECOMPUTE = ("none", "layer", "attention", "feed_forward")
PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "none")
ROTARY_SCALINGS = ("llama3", "linear", "yarn", "yarn_unrounded")
ATTENTION_TYPES = ("full", "local")
LAYER_KINDS = ("full", "local", "full_nope", "local_nope")
ADAPTED = ("query", "key", "value", "output", "feed_forward")
ATTENTION_METHODS = ("auto", "dense", "blockwise", "ring")
GATINGS = ("top_1", "top_2", "top_k", "expert_choice")
ROUTER_SCORES = ("softmax", "sigmoid")
DISPATCHES = ("capacity", "dropless")

# Image models.
IMAGE_ATTENTION_TYPES = ("full", "local_1d", "local_2d")
POOLINGS = ("class", "mean")
STEMS = ("imagenet", "cifar")
BLOCKS = ("basic", "bottleneck")
CONVOLUTION_NORM_TYPES = ("batch", "group")
