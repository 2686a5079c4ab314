"""The tensors of Llama and its relatives: grouped heads, a gated network, RMS norms."""

from collections.abc import Callable, Sequence

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


def _with_separate_experts(
    module: str, names: Sequence[str]
) -> Callable[[HParams], list[TensorRow]]:
    """Returns the function that lists all entries of a model whose experts have separate tensors.

    `module` is the experts' module; `names` are an expert's matrices: gate, input and output.
    """
    theirs, ours = f"{BLOCK}.{module}", f"{LAYER}/experts"
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
        *around(hparams),
        *attention(hparams),
        *norms(hparams, "experts"),
        *entries,
    ]


mixtral = _with_separate_experts("block_sparse_moe", ("w1", "w3", "w2"))
qwen3_moe = _with_separate_experts("mlp", ("gate_proj", "up_proj", "down_proj"))


def gpt_oss(hparams: HParams) -> list[TensorRow]:
    """Returns all entries of gpt-oss: attention has sinks; experts share tensors, with biases."""
    theirs, ours = f"{BLOCK}.mlp", f"{LAYER}/experts"
    hidden, biases = ((f"{ours}/gate{end}", f"{ours}/input{end}") for end in ("", "_bias"))
    into, out_of, bias = "experts d_model d_ff", "experts d_ff d_model", "experts d_model"
    return [
        *around(hparams),
        *attention(hparams),
        TensorRow(f"{BLOCK}.self_attn.sinks", "heads", f"{LAYER}/attention/sinks", "heads"),
        *norms(hparams, "experts"),
        *dense(f"{theirs}.router", f"{ours}/router", "d_model", "router_experts"),
        TensorRow(f"{theirs}.experts.gate_up_proj", "experts d_model (d_ff part)", hidden, into),
        TensorRow(
            f"{theirs}.experts.gate_up_proj_bias", "experts (d_ff part)", biases, "experts d_ff"
        ),
        TensorRow(f"{theirs}.experts.down_proj", out_of, f"{ours}/output", out_of),
        TensorRow(f"{theirs}.experts.down_proj_bias", bias, f"{ours}/output_bias", bias),
    ]


def phi3(hparams: HParams) -> list[TensorRow]:
    """Returns all entries of Phi-3: like Llama's, but with joined matrices and without biases."""
    attention_scope, network_scope = f"{LAYER}/attention", f"{LAYER}/feed_forward"
    heads = ("heads d_kv", "kv_heads d_kv", "kv_heads d_kv")
    qkv = f"{BLOCK}.self_attn.qkv_proj.weight", f"({' + '.join(heads)}) d_model"
    gates = f"{BLOCK}.mlp.gate_up_proj.weight", "(part d_ff) d_model"
    joined = (f"{network_scope}/gate", f"{network_scope}/input")
    output = f"{BLOCK}.self_attn.o_proj", f"{attention_scope}/output", "heads d_kv", "d_model"
    down = f"{BLOCK}.mlp.down_proj", f"{network_scope}/output", "d_ff", "d_model"
    return [
        *around(hparams),
        *norms(hparams),
        *(
            TensorRow(*qkv, f"{attention_scope}/{name}", f"d_model {dims}", term=number)
            for number, (name, dims) in enumerate(zip("qkv", heads, strict=True))
        ),
        *dense(*output, bias=False),
        TensorRow(*gates, joined, "d_model d_ff"),
        *dense(*down, bias=False),
    ]
