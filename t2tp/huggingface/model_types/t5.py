"""T5: an encoder and a decoder with relative positions; v1.0 is tied, v1.1 and Flan have gates."""

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import ACTIVATIONS, HAS_LOGITS, Config, ModelType, their_activation
from t2tp.huggingface.tensor_map import Entry, dense
from t2tp.suggestions import check_known

# feed_forward_proj and our networks; "gated-gelu" is the tanh form, in their code too.
_MLPS = {"gated-gelu": "geglu", "gated-gelu_new": "geglu", "gated-silu": "swiglu", **ACTIVATIONS}
_DENSE = {"gated-gelu": "gelu_new"}  # `dense_act_fn`, where it is not the end of the name
_ROWS = "vocab d_model"


def _read(config: Config) -> dict[str, Any]:
    mlp = config["feed_forward_proj"]
    sentence = f"config.json has feed_forward_proj={mlp!r}"
    check_known(mlp, _MLPS, "networks", sentence, ConversionError)
    dense = _DENSE.get(mlp, mlp.removeprefix("gated-"))
    for name, value in {"dense_act_fn": dense, "is_gated_act": mlp.startswith("gated-")}.items():
        if config.get(name, value) != value:
            raise ConversionError(
                f"config.json has {name}={config[name]!r} and feed_forward_proj={mlp!r}, which"
                " contradict each other"
            )
    buckets = config["relative_attention_num_buckets"]
    distance = config["relative_attention_max_distance"]
    if distance <= buckets // 2:
        raise ConversionError(
            f"config.json has relative_attention_max_distance={distance}, and must have more than"
            f" half of relative_attention_num_buckets={buckets}: each of these has a distance of"
            " its own"
        )
    is_tied = config.get("tie_word_embeddings", True)
    return {
        "num_encoder_layers": config["num_layers"],
        "num_decoder_layers": config.get("num_decoder_layers") or config["num_layers"],
        "num_kv_heads": 0,
        "mlp": _MLPS[mlp],
        # Newer configs say that all models are tied; those that are not have a tensor of logits.
        "tie_embeddings": not config.get(HAS_LOGITS, not is_tied),
        "shared_embedding": True,
        "scale_decoder_outputs": config.get("scale_decoder_outputs", is_tied),
        "attention_multiplier": 1.0,
        "bos_token_id": config.get("decoder_start_token_id") or 0,
        "use_bias": False,
        "qkv_bias": False,
        "norm_type": "rms",
        "norm_position": "pre",
        "position": "relative",
        "scale_embeddings": False,
    }


def _training(config: Config) -> dict[str, Any]:
    return {
        "attention_dropout": config["dropout_rate"],
        "relu_dropout": config["dropout_rate"],
        "layer_prepostprocess_dropout_broadcast_dims": [],
        "label_smoothing": 0.0,
    }


def _written(hparams: HParams) -> dict[str, Any]:
    mlps = {ours: theirs for theirs, ours in reversed(_MLPS.items())}
    layers = hparams.num_hidden_layers
    return {
        "num_layers": hparams.num_encoder_layers or layers,
        "num_decoder_layers": hparams.num_decoder_layers or layers,
        "feed_forward_proj": mlps.get(hparams.mlp, their_activation(hparams.mlp)),
        "tie_word_embeddings": hparams.tie_embeddings,
        "scale_decoder_outputs": hparams.scale_decoder_outputs,
        "decoder_start_token_id": hparams.bos_token_id,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _tensors(hparams: HParams) -> list[Entry]:
    logits = [Entry("lm_head.weight", _ROWS, "output_embedding", _ROWS)]
    return [
        Entry("shared.weight", _ROWS, "embedding", _ROWS),
        *_stack("encoder", ["attention", "feed_forward"], hparams),
        *_stack("decoder", ["attention", "cross_attention", "feed_forward"], hparams),
        *([] if hparams.tie_embeddings else logits),
    ]


def _stack(stack: str, blocks: list[str], hparams: HParams) -> list[Entry]:
    bias = "layer.0.SelfAttention.relative_attention_bias.weight"
    scale, buckets = f"{stack}/final/norm_scale", f"{stack}/relative_bias"
    found = [
        Entry(
            f"{stack}.block.0.{bias}", "relative_buckets heads", buckets, "heads relative_buckets"
        ),
        Entry(f"{stack}.final_layer_norm.weight", "d_model", scale, "d_model"),
    ]
    for number, block in enumerate(blocks):
        theirs = f"{stack}.block.{{layer}}.layer.{number}"
        ours = f"{stack}/layer_{{layer}}/{block}"
        norm = Entry(f"{theirs}.layer_norm.weight", "d_model", f"{ours}/norm_scale", "d_model")
        of_block = (
            _network(theirs, ours, hparams)
            if block == "feed_forward"
            else _attention(
                f"{theirs}.{'EncDec' if block == 'cross_attention' else 'Self'}Attention", ours
            )
        )
        found += [
            Entry(each.theirs, each.their_dims, each.ours, each.our_dims, f"{stack}_layer")
            for each in (norm, *of_block)
        ]
    return found


def _attention(theirs: str, ours: str) -> list[Entry]:
    found = []
    for name in ("q", "k", "v"):
        into = f"{theirs}.{name}", f"{ours}/{name}"
        found += dense(*into, "d_model", "heads d_kv", bias=False)
    return [*found, *dense(f"{theirs}.o", f"{ours}/output", "heads d_kv", "d_model", bias=False)]


def _network(theirs: str, ours: str, hparams: HParams) -> list[Entry]:
    is_gated = hparams.mlp in ("geglu", "swiglu")
    matrices = {"wi_0": "gate", "wi_1": "input"} if is_gated else {"wi": "input"}
    theirs, found = f"{theirs}.DenseReluDense", []
    for name, matrix in matrices.items():
        into = f"{theirs}.{name}", f"{ours}/{matrix}"
        found += dense(*into, "d_model", "d_ff", bias=False)
    return [*found, *dense(f"{theirs}.wo", f"{ours}/output", "d_ff", "d_model", bias=False)]


T5 = ModelType(
    name="t5",
    architecture="T5ForConditionalGeneration",
    model="transformer",
    hparams_set="transformer_base",
    problem="translate_tsv",
    same={
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "d_ff": "d_ff",
        "d_kv": "d_kv",
        "num_heads": "num_heads",
        "layer_norm_epsilon": "norm_epsilon",
        "dropout_rate": "layer_prepostprocess_dropout",
        "relative_attention_num_buckets": "relative_buckets",
        "relative_attention_max_distance": "relative_max_distance",
    },
    read=_read,
    written=_written,
    training=_training,
    tensors=_tensors,
    reads=(
        *("num_layers", "num_decoder_layers", "tie_word_embeddings", "scale_decoder_outputs"),
        *("dense_act_fn", "is_gated_act", "decoder_start_token_id"),
    ),
    # `n_positions` is in T5's first configs, whose positions are relative.
    without_effect=("n_positions",),
    required={"is_encoder_decoder": True},
    defaults={
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
    },
    ignored=r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
