"""BERT: an encoder with post-norm, as a masked language model or as a classifier of texts."""

from dataclasses import replace
from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import (
    MASK_TOKEN,
    Config,
    ModelType,
    Shapes,
    activation,
    labels,
    num_classes,
    their_activation,
)
from t2tp.huggingface.tensor_map import Entry, dense, layer_norm

_ROWS = "vocab d_model"

_SAME = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_heads",
    "type_vocab_size": "token_types",
    "layer_norm_eps": "norm_epsilon",
    "hidden_dropout_prob": "layer_prepostprocess_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_DEFAULTS = {
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_REQUIRED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
# Entries of BERT's first files.
_WITHOUT_EFFECT = (
    "directionality",
    *(f"pooler_{name}" for name in ("fc_size", "num_attention_heads", "num_fc_layers")),
    *("pooler_size_per_head", "pooler_type"),
)
# BERT's first files have the names of TensorFlow's layer norm.
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_CONSTANTS = r"embeddings\.position_ids|cls\.seq_relationship\..*"


def _read(config: Config) -> dict[str, Any]:
    return {
        "d_kv": config["hidden_size"] // config["num_attention_heads"],
        "num_kv_heads": 0,
        "mlp": activation(config, "hidden_act"),
        "use_bias": True,
        "norm_type": "layer",
        "norm_position": "post",
        "position": "learned",
        "embedding_norm": True,
        "scale_embeddings": False,
    }


def _read_masked(config: Config) -> dict[str, Any]:
    return {
        **_read(config),
        "mlm_head": True,
        "logits_bias": True,
        "pooler": False,
        "num_classes": 0,
    }


def _read_classifier(config: Config) -> dict[str, Any]:
    return {
        **_read(config),
        "tie_embeddings": True,
        "mlm_head": False,
        "logits_bias": False,
        "pooler": True,
        "num_classes": num_classes(config),
    }


def _training(config: Config) -> dict[str, Any]:
    return {"relu_dropout": 0.0, "mask_token_id": config.get(MASK_TOKEN) or 0}


def _written(hparams: HParams) -> dict[str, Any]:
    return {"hidden_act": their_activation(hparams.mlp)}


def _written_classifier(hparams: HParams) -> dict[str, Any]:
    return {**_written(hparams), **labels(hparams.num_classes)}


def _around(hparams: HParams) -> list[Entry]:
    """Returns the entries of embeddings and layers, which all architectures have."""
    embeddings, layer = "bert.embeddings", "bert.encoder.layer.{layer}"
    tables = {
        "word": ("vocab d_model", "embedding"),
        "position": ("max_length d_model", "positions"),
        "token_type": ("token_types d_model", "type_embedding"),
    }
    return [
        *(
            Entry(f"{embeddings}.{name}_embeddings.weight", dims, ours, dims)
            for name, (dims, ours) in tables.items()
        ),
        *layer_norm(f"{embeddings}.LayerNorm", "embedding_norm"),
        *layers(layer, "attention.self"),
        *layer_norm(f"{layer}.attention.output.LayerNorm", "layer_{layer}/attention"),
        *layer_norm(f"{layer}.output.LayerNorm", "layer_{layer}/feed_forward"),
    ]


def layers(block: str, attention: str, qkv_bias: bool = True) -> list[Entry]:
    """Returns the entries of the matrices and biases of a layer, which ViT has too.

    Args:
      block: the layer's name.
      attention: the name in it of queries, keys and values.
      qkv_bias: whether these have biases.
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


def _dense(theirs: str, ours: str) -> list[Entry]:
    return [
        Entry(f"{theirs}.weight", "d_model_out d_model", f"{ours}/kernel", "d_model d_model_out"),
        Entry(f"{theirs}.bias", "d_model_out", f"{ours}/bias", "d_model_out"),
    ]


def _tensors_of_masked(hparams: HParams) -> list[Entry]:
    head = "cls.predictions"
    bias = Entry(f"{head}.bias", "vocab", "logits_bias", "vocab")
    of_logits = [bias]
    if not hparams.tie_embeddings:
        # Their code adds the bias of the decoder; the other is the same one, or unused.
        of_logits = [
            Entry(f"{head}.decoder.weight", _ROWS, "output_embedding", _ROWS),
            Entry(f"{head}.decoder.bias", "vocab", "logits_bias", "vocab"),
            replace(bias, is_copy=True),
        ]
    return [
        *_around(hparams),
        *_dense(f"{head}.transform.dense", "mlm_head"),
        *layer_norm(f"{head}.transform.LayerNorm", "mlm_head"),
        *of_logits,
    ]


def _tensors_of_classifier(hparams: HParams) -> list[Entry]:
    return [
        *_around(hparams),
        *_dense("bert.pooler.dense", "pooler"),
        *classifier("classifier/kernel", "classifier/bias"),
    ]


def classifier(kernel: str, bias: str) -> list[Entry]:
    """Returns the entries of the last layer of a classifier, which ViT has too."""
    return [
        Entry("classifier.weight", "classes d_model", kernel, "d_model classes"),
        Entry("classifier.bias", "classes", bias, "classes"),
    ]


def _from_shapes(shapes: Shapes) -> dict[str, Any]:
    return {"num_classes": shapes["classifier/bias"][0]}


BERT = ModelType(
    name="bert",
    architecture="BertForMaskedLM",
    model="transformer_encoder",
    hparams_set="transformer_encoder_base",
    problem="languagemodel_textfiles",
    same={**_SAME, "tie_word_embeddings": "tie_embeddings"},
    read=_read_masked,
    written=_written,
    training=_training,
    tensors=_tensors_of_masked,
    defaults={**_DEFAULTS, "tie_word_embeddings": True},
    required=_REQUIRED,
    without_effect=_WITHOUT_EFFECT,
    logits="cls.predictions.decoder.weight",
    prefix="bert.",
    ignored=rf"{_CONSTANTS}|pooler\..*|cls\.predictions\.decoder\.bias",
    renamed=_RENAMED,
    stands_in={"cls.predictions.decoder.bias": "cls.predictions.bias"},
)

BERT_CLASSIFIER = ModelType(
    name="bert",
    architecture="BertForSequenceClassification",
    model="transformer_encoder",
    hparams_set="transformer_encoder_base",
    problem="text2class_records",
    same=_SAME,
    read=_read_classifier,
    written=_written_classifier,
    training=_training,
    tensors=_tensors_of_classifier,
    defaults=_DEFAULTS,
    required=_REQUIRED,
    without_effect=(*_WITHOUT_EFFECT, "tie_word_embeddings"),
    prefix="bert.",
    ignored=rf"{_CONSTANTS}|cls\..*",
    renamed=_RENAMED,
    from_shapes=_from_shapes,
)
