"""T5: its networks, numbers of layers, and tensors."""

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_type import HAS_LOGITS
from t2tp.huggingface.part import Config, ConfigPart
from t2tp.huggingface.tensor_map import TensorRow, dense
from t2tp.huggingface.values import ACTIVATIONS, read_name, their_name

# Maps feed_forward_proj to our networks. "gated-gelu" is the tanh form in `transformers`, too.
_MLPS = {"gated-gelu": "geglu", "gated-gelu_new": "geglu", "gated-silu": "swiglu", **ACTIVATIONS}
_DENSE = {"gated-gelu": "gelu_new"}  # `dense_act_fn`, if it is not the end of the name
_ROWS = "vocab d_model"


def _read(config: Config) -> dict[str, Any]:
    mlp = config["feed_forward_proj"]
    ours = read_name(config, "feed_forward_proj", _MLPS, "networks")
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
        "mlp": ours,
        # Newer configs do not show that a model is untied, but its files have a tensor of logits.
        "tie_embeddings": not config.get(HAS_LOGITS, not is_tied),
        "scale_decoder_outputs": config.get("scale_decoder_outputs", is_tied),
        "bos_token_id": config.get("decoder_start_token_id") or 0,
    }


def _written(hparams: HParams) -> dict[str, Any]:
    layers = hparams.num_hidden_layers
    return {
        "num_layers": hparams.num_encoder_layers or layers,
        "num_decoder_layers": hparams.num_decoder_layers or layers,
        "feed_forward_proj": their_name(hparams.mlp, _MLPS),
        "tie_word_embeddings": hparams.tie_embeddings,
        "scale_decoder_outputs": hparams.scale_decoder_outputs,
        "decoder_start_token_id": hparams.bos_token_id,
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""
    logits = [TensorRow("lm_head.weight", _ROWS, "output_embedding", _ROWS)]
    return [
        TensorRow("shared.weight", _ROWS, "embedding", _ROWS),
        *_stack("encoder", ["attention", "feed_forward"], hparams),
        *_stack("decoder", ["attention", "cross_attention", "feed_forward"], hparams),
        *([] if hparams.tie_embeddings else logits),
    ]


def _stack(stack: str, blocks: list[str], hparams: HParams) -> list[TensorRow]:
    bias = "layer.0.SelfAttention.relative_attention_bias.weight"
    scale, buckets = f"{stack}/final/norm_scale", f"{stack}/relative_bias"
    found = [
        TensorRow(
            f"{stack}.block.0.{bias}", "relative_buckets heads", buckets, "heads relative_buckets"
        ),
        TensorRow(f"{stack}.final_layer_norm.weight", "d_model", scale, "d_model"),
    ]
    for number, block in enumerate(blocks):
        theirs = f"{stack}.block.{{layer}}.layer.{number}"
        ours = f"{stack}/layer_{{layer}}/{block}"
        norm = TensorRow(f"{theirs}.layer_norm.weight", "d_model", f"{ours}/norm_scale", "d_model")
        of_block = (
            _network(theirs, ours, hparams)
            if block == "feed_forward"
            else _attention(
                f"{theirs}.{'EncDec' if block == 'cross_attention' else 'Self'}Attention", ours
            )
        )
        found += [
            TensorRow(each.theirs, each.their_dims, each.ours, each.our_dims, f"{stack}_layer")
            for each in (norm, *of_block)
        ]
    return found


def _attention(theirs: str, ours: str) -> list[TensorRow]:
    found = []
    for name in ("q", "k", "v"):
        into = f"{theirs}.{name}", f"{ours}/{name}"
        found += dense(*into, "d_model", "heads d_kv", bias=False)
    return [*found, *dense(f"{theirs}.o", f"{ours}/output", "heads d_kv", "d_model", bias=False)]


def _network(theirs: str, ours: str, hparams: HParams) -> list[TensorRow]:
    is_gated = hparams.mlp in ("geglu", "swiglu")
    matrices = {"wi_0": "gate", "wi_1": "input"} if is_gated else {"wi": "input"}
    theirs, found = f"{theirs}.DenseReluDense", []
    for name, matrix in matrices.items():
        into = f"{theirs}.{name}", f"{ours}/{matrix}"
        found += dense(*into, "d_model", "d_ff", bias=False)
    return [*found, *dense(f"{theirs}.wo", f"{ours}/output", "d_ff", "d_model", bias=False)]


T5 = ConfigPart(
    (
        *("num_layers", "num_decoder_layers", "feed_forward_proj", "tie_word_embeddings"),
        *("dense_act_fn", "is_gated_act", "scale_decoder_outputs", "decoder_start_token_id"),
    ),
    _read,
    _written,
)
