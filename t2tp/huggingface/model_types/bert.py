"""The tensors of BERT, as a masked language model and as a classifier of texts."""

from dataclasses import replace

from t2tp.hparam import HParams
from t2tp.huggingface.tensor_map import TensorRow, dense, layer_norm

_ROWS = "vocab d_model"


def _around(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of embeddings and layers, in all architectures."""
    embeddings, layer = "bert.embeddings", "bert.encoder.layer.{layer}"
    tables = {
        "word": ("vocab d_model", "embedding"),
        "position": ("max_length d_model", "positions"),
        "token_type": ("token_types d_model", "type_embedding"),
    }
    return [
        *(
            TensorRow(f"{embeddings}.{name}_embeddings.weight", dims, ours, dims)
            for name, (dims, ours) in tables.items()
        ),
        *layer_norm(f"{embeddings}.LayerNorm", "embedding_norm"),
        *layers(layer, "attention.self"),
        *layer_norm(f"{layer}.attention.output.LayerNorm", "layer_{layer}/attention"),
        *layer_norm(f"{layer}.output.LayerNorm", "layer_{layer}/feed_forward"),
    ]


def layers(block: str, attention: str, qkv_bias: bool = True) -> list[TensorRow]:
    """Returns the entries of a layer's matrices and biases, for BERT and ViT.

    `attention` is the name, within the layer, of the module of queries, keys and values.
    """
    ours, network, heads = "layer_{layer}/attention", "layer_{layer}/feed_forward", "heads d_kv"
    found = []
    for theirs in ("query", "key", "value"):
        into = f"{block}.{attention}.{theirs}", f"{ours}/{theirs[0]}"
        found += dense(*into, "d_model", heads, bias=qkv_bias)
    return [
        *found,
        *dense(f"{block}.attention.output.dense", f"{ours}/output", heads, "d_model"),
        *dense(f"{block}.intermediate.dense", f"{network}/input", "d_model", "d_ff"),
        *dense(f"{block}.output.dense", f"{network}/output", "d_ff", "d_model"),
    ]


def _dense(theirs: str, ours: str) -> list[TensorRow]:
    return [
        TensorRow(
            f"{theirs}.weight", "d_model_out d_model", f"{ours}/kernel", "d_model d_model_out"
        ),
        TensorRow(f"{theirs}.bias", "d_model_out", f"{ours}/bias", "d_model_out"),
    ]


def tensors_of_masked(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of a masked language model; see `tensor_map`."""
    head = "cls.predictions"
    bias = TensorRow(f"{head}.bias", "vocab", "logits_bias", "vocab")
    of_logits = [bias]
    if not hparams.tie_embeddings:
        # Their code adds the decoder's bias. The head's bias is a copy of it, or unused.
        of_logits = [
            TensorRow(f"{head}.decoder.weight", _ROWS, "output_embedding", _ROWS),
            TensorRow(f"{head}.decoder.bias", "vocab", "logits_bias", "vocab"),
            replace(bias, is_copy=True),
        ]
    return [
        *_around(hparams),
        *_dense(f"{head}.transform.dense", "mlm_head"),
        *layer_norm(f"{head}.transform.LayerNorm", "mlm_head"),
        *of_logits,
    ]


def tensors_of_classifier(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of a classifier; see `tensor_map`."""
    return [
        *_around(hparams),
        *_dense("bert.pooler.dense", "pooler"),
        *classifier("classifier/kernel", "classifier/bias"),
    ]


def classifier(kernel: str, bias: str) -> list[TensorRow]:
    """Returns the entries of a classifier's last layer, for BERT and ViT."""
    return [
        TensorRow("classifier.weight", "classes d_model", kernel, "d_model classes"),
        TensorRow("classifier.bias", "classes", bias, "classes"),
    ]
