"""The tensors of Mixtral and Qwen3-MoE, whose experts have separate tensors."""

from collections.abc import Callable, Sequence

from t2tp.hparam import HParams
from t2tp.huggingface.model_types import llama
from t2tp.huggingface.tensor_map import TensorRow, dense


def _tensors(module: str, names: Sequence[str]) -> Callable[[HParams], list[TensorRow]]:
    """Returns the function that lists all entries.

    `module` is the experts' module; `names` are an expert's matrices: gate, input and output.
    """
    theirs, ours = f"{llama.BLOCK}.{module}", f"{llama.LAYER}/experts"
    into, out_of = "experts d_model d_ff", "experts d_ff d_model"
    experts = (
        ("gate", "d_ff d_model", into),
        ("input", "d_ff d_model", into),
        ("output", "d_model d_ff", out_of),
    )
    entries = [
        *dense(f"{theirs}.gate", f"{ours}/router", "d_model", "router_experts", bias=False),
        *(
            TensorRow(
                f"{theirs}.experts.{{expert}}.{name}.weight", their_dims, f"{ours}/{each}", dims
            )
            for name, (each, their_dims, dims) in zip(names, experts, strict=True)
        ),
    ]
    return lambda hparams: [
        *llama.around(hparams),
        *llama.attention(hparams),
        *llama.norms(hparams, "experts"),
        *entries,
    ]


mixtral = _tensors("block_sparse_moe", ("w1", "w3", "w2"))
qwen3_moe = _tensors("mlp", ("gate_proj", "up_proj", "down_proj"))
