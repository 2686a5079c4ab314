"""The tensors of Llama and its relatives: grouped heads, a gated network, RMS norms."""

from t2tp.hparam import HParams
from t2tp.huggingface.tensor_map import TensorRow, dense

LAYER, BLOCK = "layer_{layer}", "model.layers.{layer}"


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""

    def network(theirs: str, ours: str, into: str, out: str) -> list[TensorRow]:
        theirs, ours = f"{BLOCK}.mlp.{theirs}", f"{LAYER}/feed_forward/{ours}"
        return dense(theirs, ours, into, out, bias=hparams.mlp_bias)

    return [
        *around(hparams),
        *attention(hparams),
        *network("gate_proj", "gate", "d_model", "d_ff"),
        *network("up_proj", "input", "d_model", "d_ff"),
        *network("down_proj", "output", "d_ff", "d_model"),
        *norms(hparams),
    ]


def around(hparams: HParams) -> list[TensorRow]:
    """Returns the entries outside of layers: embedding, final norm and logits."""
    rows = "vocab d_model"
    logits = [TensorRow("lm_head.weight", rows, "output_embedding", rows)]
    return [
        TensorRow("model.embed_tokens.weight", rows, "embedding", rows),
        TensorRow("model.norm.weight", "d_model", "final/norm_scale", "d_model"),
        *([] if hparams.tie_embeddings else logits),
    ]


def attention(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of attention, with norms of queries and keys."""
    theirs, ours = f"{BLOCK}.self_attn", f"{LAYER}/attention"
    found, has_bias = [], hparams.attention_bias
    for name, heads in {"q": "heads", "k": "kv_heads", "v": "kv_heads"}.items():
        into = f"{theirs}.{name}_proj", f"{ours}/{name}", "d_model", f"{heads} d_kv"
        found += dense(*into, bias=has_bias or hparams.qkv_bias)
        if hparams.qk_norm != "none" and name != "v":
            dims = "d_kv" if hparams.qk_norm == "head" else f"{heads} d_kv"
            scale = f"{ours}/{name}_norm/norm_scale"
            found.append(TensorRow(f"{theirs}.{name}_norm.weight", f"({dims})", scale, dims))
    out_of = f"{theirs}.o_proj", f"{ours}/output", "heads d_kv", "d_model"
    return [*found, *dense(*out_of, bias=has_bias)]


def norms(hparams: HParams, network: str = "feed_forward") -> list[TensorRow]:
    """Returns the entries of the norms around the blocks; their names depend on the position."""
    names = {
        "pre": ("input", "", "post_attention", ""),
        "output": ("post_attention", "", "post_feedforward", ""),
        "both": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    }[hparams.norm_position]
    blocks = (f"{block}{end}" for block in ("attention", network) for end in ("", "/output_norm"))
    return [
        TensorRow(
            f"{BLOCK}.{name}_layernorm.weight", "d_model", f"{LAYER}/{ours}/norm_scale", "d_model"
        )
        for name, ours in zip(names, blocks, strict=True)
        if name
    ]
