"""The tensors of GPT-2: matrices are [in, out]; queries, keys and values share a matrix."""

from t2tp.hparam import HParams
from t2tp.huggingface.tensor_map import TensorRow, dense, layer_norm

_QKV = tuple(f"layer_{{layer}}/attention/{name}" for name in ("q", "k", "v"))


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""
    layer, block = "layer_{layer}", "transformer.h.{layer}"
    attention, network = f"{layer}/attention", f"{layer}/feed_forward"
    biases = tuple(f"{name}_bias" for name in _QKV)
    qkv, heads = f"{block}.attn.c_attn", "heads d_kv"
    logits = [TensorRow("lm_head.weight", "vocab d_model", "output_embedding", "vocab d_model")]

    def conv(theirs: str, ours: str, into: str, out: str) -> list[TensorRow]:
        return dense(f"{block}.{theirs}", ours, into, out, is_in_out=True)

    return [
        TensorRow("transformer.wte.weight", "vocab d_model", "embedding", "vocab d_model"),
        TensorRow(
            "transformer.wpe.weight", "max_length d_model", "positions", "max_length d_model"
        ),
        *layer_norm(f"{block}.ln_1", attention),
        TensorRow(f"{qkv}.weight", f"d_model (part {heads})", _QKV, f"d_model {heads}"),
        TensorRow(f"{qkv}.bias", f"(part {heads})", biases, heads),
        *conv("attn.c_proj", f"{attention}/output", heads, "d_model"),
        *layer_norm(f"{block}.ln_2", network),
        *conv("mlp.c_fc", f"{network}/input", "d_model", "d_ff"),
        *conv("mlp.c_proj", f"{network}/output", "d_ff", "d_model"),
        *layer_norm("transformer.ln_f", "final"),
        *([] if hparams.tie_embeddings else logits),
    ]
