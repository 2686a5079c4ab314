"""The tensors of Phi-3: like Llama's, but with joined matrices and without biases."""

from t2tp.hparam import HParams
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.tensor_map import TensorRow, dense

_ATTENTION, _NETWORK = f"{llama.LAYER}/attention", f"{llama.LAYER}/feed_forward"


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""
    heads = ("heads d_kv", "kv_heads d_kv", "kv_heads d_kv")
    qkv = f"{llama.BLOCK}.self_attn.qkv_proj.weight", f"({' + '.join(heads)}) d_model"
    gates = f"{llama.BLOCK}.mlp.gate_up_proj.weight", "(part d_ff) d_model"
    joined = (f"{_NETWORK}/gate", f"{_NETWORK}/input")
    output = f"{llama.BLOCK}.self_attn.o_proj", f"{_ATTENTION}/output", "heads d_kv", "d_model"
    down = f"{llama.BLOCK}.mlp.down_proj", f"{_NETWORK}/output", "d_ff", "d_model"
    return [
        *llama.around(hparams),
        *llama.norms(hparams),
        *(
            TensorRow(*qkv, f"{_ATTENTION}/{name}", f"d_model {dims}", term=number)
            for number, (name, dims) in enumerate(zip("qkv", heads, strict=True))
        ),
        *dense(*output, bias=False),
        TensorRow(*gates, joined, "d_model d_ff"),
        *dense(*down, bias=False),
    ]
