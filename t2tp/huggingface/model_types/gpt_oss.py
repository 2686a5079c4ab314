"""The tensors of gpt-oss, with attention sinks; all experts are in joint tensors, with biases."""

from t2tp.hparam import HParams
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.tensor_map import TensorRow, dense


def tensors(hparams: HParams) -> list[TensorRow]:
    """Returns the entries of all tensors; see `tensor_map`."""
    theirs, ours = f"{llama.BLOCK}.mlp", f"{llama.LAYER}/experts"
    hidden, biases = ((f"{ours}/gate{end}", f"{ours}/input{end}") for end in ("", "_bias"))
    into, out_of, bias = "experts d_model d_ff", "experts d_ff d_model", "experts d_model"
    return [
        *llama.around(hparams),
        *llama.attention(hparams),
        TensorRow(
            f"{llama.BLOCK}.self_attn.sinks", "heads", f"{llama.LAYER}/attention/sinks", "heads"
        ),
        *llama.norms(hparams, "experts"),
        *dense(f"{theirs}.router", f"{ours}/router", "d_model", "router_experts"),
        TensorRow(f"{theirs}.experts.gate_up_proj", "experts d_model (d_ff part)", hidden, into),
        TensorRow(
            f"{theirs}.experts.gate_up_proj_bias", "experts (d_ff part)", biases, "experts d_ff"
        ),
        TensorRow(f"{theirs}.experts.down_proj", out_of, f"{ours}/output", out_of),
        TensorRow(f"{theirs}.experts.down_proj_bias", bias, f"{ours}/output_bias", bias),
    ]
