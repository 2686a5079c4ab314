"""Lists of allowed values of hyperparameters.

The declarations of hyperparameters use these lists, and layers check their arguments against them.
The allowed values of other hyperparameters are in `hparams/declarations.toml`.
"""

PRECISIONS = ("float32", "bfloat16", "float16")

# Which weights of a run are evaluated, decoded and exported: the moving averages (`ema_decay`) of
# the variables that have one, or the weights after the last step.
WEIGHTS = ("averages", "last")

# Transformers.
# Maps a feed-forward network to the activation function of its layer or gate.
PLAIN_MLPS = {"relu": "relu", "gelu": "gelu", "gelu_erf": "gelu_erf", "silu": "swish"}
GATED_MLPS = {"swiglu": "swish", "geglu": "gelu", "clamped_swiglu": "clamped_swiglu"}
MLPS = (*PLAIN_MLPS, *GATED_MLPS)
NORM_TYPES = ("rms", "rms_unit_offset", "layer")
NORM_POSITIONS = ("pre", "post", "output", "both")
RECOMPUTE = ("none", "layer", "attention", "feed_forward")
LAYER_KINDS = ("full", "local", "full_nope", "local_nope")
ADAPTED = ("query", "key", "value", "output", "feed_forward")
PREFERENCE_LOSSES = ("", "dpo", "dpo_norm", "ipo", "simpo", "orpo")
GATINGS = ("top_1", "top_2", "top_k", "expert_choice")
ROUTER_SCORES = ("softmax", "sigmoid")
DISPATCHES = ("capacity", "dropless")

# Image models.
CONVOLUTION_NORM_TYPES = ("batch", "group")
