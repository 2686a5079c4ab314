"""GPT-2: learned positions, layer norms, biases everywhere, tied embeddings."""

from typing import Any

from t2tp.hparam import HParams
from t2tp.huggingface.model_type import Config, ModelType, activation, their_activation, token
from t2tp.huggingface.tensor_map import Entry, dense, layer_norm

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
    layer, block = "layer_{layer}", "transformer.h.{layer}"
    attention, network = f"{layer}/attention", f"{layer}/feed_forward"
    biases = tuple(f"{name}_bias" for name in _QKV)
    qkv, heads = f"{block}.attn.c_attn", "heads d_kv"
    logits = [Entry("lm_head.weight", "vocab d_model", "output_embedding", "vocab d_model")]

    def conv(theirs: str, ours: str, into: str, out: str) -> list[Entry]:
        return dense(f"{block}.{theirs}", ours, into, out, is_in_out=True)

    return [
        Entry("transformer.wte.weight", "vocab d_model", "embedding", "vocab d_model"),
        Entry("transformer.wpe.weight", "max_length d_model", "positions", "max_length d_model"),
        *layer_norm(f"{block}.ln_1", attention),
        Entry(f"{qkv}.weight", f"d_model (part {heads})", _QKV, f"d_model {heads}"),
        Entry(f"{qkv}.bias", f"(part {heads})", biases, heads),
        *conv("attn.c_proj", f"{attention}/output", heads, "d_model"),
        *layer_norm(f"{block}.ln_2", network),
        *conv("mlp.c_fc", f"{network}/input", "d_model", "d_ff"),
        *conv("mlp.c_proj", f"{network}/output", "d_ff", "d_model"),
        *layer_norm("transformer.ln_f", "final"),
        *([] if hparams.tie_embeddings else logits),
    ]


GPT2 = ModelType(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    model="transformer_lm",
    hparams_set="transformer_lm_plain",
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
