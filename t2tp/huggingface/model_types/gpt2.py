"""GPT-2: learned positions, layer norms, biases everywhere, tied embeddings."""

from __future__ import annotations

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config, ModelType, activation, their_activation, token
from t2tp.huggingface.tensor_map import Entry

_QKV = tuple(f"layer_{{layer}}/attention/{name}" for name in ("q", "k", "v"))


def _read(config: Config) -> dict[str, Any]:
    return {
        "d_ff": 4 * config["n_embd"] if config["n_inner"] is None else config["n_inner"],
        "d_kv": config["n_embd"] // config["n_head"],
        "num_kv_heads": 0,
        "mlp": activation(config, "activation_function"),
        "bos_token_id": token(config["bos_token_id"]),
        "use_bias": True,
        "norm_type": "layer",
        "norm_position": "pre",
        "position": "learned",
        "scale_embeddings": False,
    }


def _written(hparams: HParams) -> dict[str, Any]:
    return {
        "n_inner": hparams.d_ff,
        "bos_token_id": hparams.bos_token_id,
        "activation_function": their_activation(hparams.mlp),
    }


def _tensors(hparams: HParams) -> list[Entry]:
    def norm(theirs: str, ours: str) -> list[Entry]:
        return [
            Entry(f"{theirs}.weight", "d_model", f"{ours}/norm_scale", "d_model"),
            Entry(f"{theirs}.bias", "d_model", f"{ours}/norm_bias", "d_model"),
        ]

    layer, block = "layer_{layer}", "transformer.h.{layer}"
    attention, feed_forward = f"{layer}/attention", f"{layer}/feed_forward"
    biases = tuple(f"{name}_bias" for name in _QKV)
    logits = (
        []
        if hparams.tie_embeddings
        else [Entry("lm_head.weight", "vocab d_model", "output_embedding", "vocab d_model")]
    )
    return [
        Entry("transformer.wte.weight", "vocab d_model", "embedding", "vocab d_model"),
        Entry("transformer.wpe.weight", "max_length d_model", "positions", "max_length d_model"),
        *norm(f"{block}.ln_1", attention),
        Entry(
            f"{block}.attn.c_attn.weight", "d_model (part heads d_kv)", _QKV, "d_model heads d_kv"
        ),
        Entry(f"{block}.attn.c_attn.bias", "(part heads d_kv)", biases, "heads d_kv"),
        Entry(
            f"{block}.attn.c_proj.weight",
            "(heads d_kv) d_model",
            f"{attention}/output",
            "heads d_kv d_model",
        ),
        Entry(f"{block}.attn.c_proj.bias", "d_model", f"{attention}/output_bias", "d_model"),
        *norm(f"{block}.ln_2", feed_forward),
        Entry(f"{block}.mlp.c_fc.weight", "d_model d_ff", f"{feed_forward}/input", "d_model d_ff"),
        Entry(f"{block}.mlp.c_fc.bias", "d_ff", f"{feed_forward}/input_bias", "d_ff"),
        Entry(
            f"{block}.mlp.c_proj.weight", "d_ff d_model", f"{feed_forward}/output", "d_ff d_model"
        ),
        Entry(f"{block}.mlp.c_proj.bias", "d_model", f"{feed_forward}/output_bias", "d_model"),
        *norm("transformer.ln_f", "final"),
        *logits,
    ]


GPT2 = ModelType(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    model="transformer_lm",
    hparams_set="transformer_lm_base",
    problem="languagemodel_textfiles",
    same={
        "vocab_size": "vocab_size",
        "n_positions": "max_length",
        "n_embd": "d_model",
        "n_layer": "num_hidden_layers",
        "n_head": "num_heads",
        "layer_norm_epsilon": "norm_epsilon",
        "tie_word_embeddings": "tie_embeddings",
        "resid_pdrop": "layer_prepostprocess_dropout",
        "attn_pdrop": "attention_dropout",
    },
    read=_read,
    written=_written,
    tensors=_tensors,
    defaults={
        "n_inner": None,
        "activation_function": "gelu_new",
        "bos_token_id": 50256,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "is_causal": True,
    },
    without_effect=(
        "n_ctx",
        "embd_pdrop",
        "reorder_and_upcast_attn",
        *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels")),
        "summary_first_dropout",
    ),
    prefix="transformer.",
    ignored=r"h\.\d+\.attn\.(masked_)?bias",
)
