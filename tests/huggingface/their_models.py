"""Creates directories with small random models of `transformers`.

Only functions that need PyTorch import it, so PyTorch is not imported while tests are collected.
"""

import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, LENGTH = 53, 12

_GPT2 = dict(vocab_size=VOCAB, n_positions=256, n_embd=20, n_layer=2, n_head=4, n_inner=28)
_GPT2 |= dict(bos_token_id=7, eos_token_id=7, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0)

_LLAMA = dict(vocab_size=VOCAB, hidden_size=20, intermediate_size=28, num_hidden_layers=2)
_LLAMA |= dict(num_attention_heads=4, max_position_embeddings=256, bos_token_id=3)
_ROPE = dict(rope_type="llama3", rope_theta=300.0, factor=8.0, original_max_position_embeddings=16)
_ROPE |= dict(low_freq_factor=1.0, high_freq_factor=4.0)

_GROUPED = {**_LLAMA, "num_key_value_heads": 2}
# Name -> (type of the language model, config). In the tables of other models below, a class of
# `transformers` takes the place of the type.
LANGUAGE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2_untied_relu": (
        "gpt2",
        {**_GPT2, "tie_word_embeddings": False, "activation_function": "relu", "n_inner": None},
    ),
    "llama_grouped_scaled": ("llama", {**_GROUPED, "head_dim": 6, "rope_parameters": _ROPE}),
    "qwen2": ("qwen2", {**_GROUPED, "hidden_size": 24}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 8, "attention_bias": True}),
    "mixtral": ("mixtral", {**_GROUPED, "hidden_size": 24, "num_local_experts": 4}),
}

_FULL, _SLIDING = "full_attention", "sliding_attention"
_BIASES, _MLP_BIASES = {"attention_bias": [False, True]}, {"mlp_bias": [False, True]}
_GATED_ACTS = ["silu", "gelu_pytorch_tanh"]
_SHARED: dict[str, list[Any]] = {
    "num_key_value_heads": [2, 4],
    "head_dim": [4, 6, 10],
    "tie_word_embeddings": [False, True],
    "hidden_act": _GATED_ACTS,
    "rms_norm_eps": [1e-5, 1e-2],
}
_SCALED = [
    dict(rope_type="default", rope_theta=30.0),
    dict(rope_type="linear", rope_theta=100.0, factor=3.0),
    _ROPE,
    dict(rope_type="yarn", rope_theta=300.0, factor=4.0, original_max_position_embeddings=16),
    dict(
        **dict(rope_type="yarn", rope_theta=90.0, factor=2.5, original_max_position_embeddings=40),
        **dict(beta_fast=9.0, beta_slow=2.0, attention_factor=0.7),
    ),
]
_UNROUNDED = dict(rope_type="yarn", rope_theta=150.0, factor=8.0, truncate=False)
_UNROUNDED |= dict(original_max_position_embeddings=24, beta_fast=4.0, beta_slow=1.0)
_WINDOWS = [1, 3, 5]
_LAYERS = {"layer_types": [None], "sliding_window": _WINDOWS}
_QWEN_LAYERS = {"use_sliding_window": [False, True], "max_window_layers": [1, 2], **_LAYERS}
_ROPES = {"rope_parameters": _SCALED}
# t2tp multiplies by these factors or by their reciprocals. The factors that it inverts have exact
# reciprocals in float32. It also scales attention by the root of the head size.
_FACTORS: dict[str, list[Any]] = {
    **{"head_dim": [4, 16], "embedding_multiplier": [0.7, 4.0], "logits_scaling": [0.5, 4.0]},
    **{"residual_multiplier": [0.3, 1.0], "attention_multiplier": [0.1, 1.0]},
}
_TWO_ROPES = {
    "rope_parameters": [
        {_FULL: full, _SLIDING: dict(rope_type="default", rope_theta=base)}
        for full in _SCALED
        for base in (30.0, 70.0)
    ]
}
_GEMMA = {
    **{name: values for name, values in _SHARED.items() if name != "hidden_act"},
    **{"hidden_activation": _GATED_ACTS, **_BIASES, **_LAYERS},
    **{"query_pre_attn_scalar": [3, 16], "final_logit_softcapping": [None, 2.0]},
    "head_dim": _FACTORS["head_dim"],
}
# Type -> entry of the config -> values to draw from for random configs.
KINDS: dict[str, dict[str, list[Any]]] = {
    "gpt2": {
        "tie_word_embeddings": [False, True],
        "activation_function": ["relu", "gelu_new", "gelu"],
        "n_inner": [None, 28],
    },
    "llama": {**_SHARED, **_BIASES, **_ROPES, **_MLP_BIASES},
    "mistral": {**_SHARED, **_ROPES, "sliding_window": [None, *_WINDOWS]},
    "qwen2": {**_SHARED, **_ROPES, **_QWEN_LAYERS},
    "gemma": {**_SHARED, **_BIASES, **_ROPES},
    "mixtral": {**_SHARED, "sliding_window": [None, *_WINDOWS], "num_local_experts": [2, 4]},
    "qwen3": {**_SHARED, **_BIASES, **_ROPES, **_QWEN_LAYERS},
    "qwen3_moe": {
        **{**_SHARED, **_BIASES, **_ROPES, "num_experts": [4, 6], "norm_topk_prob": [False, True]},
        **{"num_experts_per_tok": [1, 3], "moe_intermediate_size": [12, 16]},
    },
    "olmo2": {**_SHARED, **_BIASES, **_ROPES},
    "olmo3": {**_SHARED, **_BIASES, **_LAYERS, **_TWO_ROPES},
    "granite": {**_SHARED, **_BIASES, **_ROPES, **_MLP_BIASES, **_FACTORS},
    "smollm3": {
        **{**_SHARED, **_BIASES, **_ROPES, **_LAYERS, **_MLP_BIASES},
        **{"use_sliding_window": [False, True], "no_rope_layer_interval": [2]},
    },
    "phi3": {
        **{**_SHARED, "head_dim": [None], "sliding_window": [None, *_WINDOWS]},
        "rope_parameters": [
            dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=fraction)
            for fraction in (0.5, 0.75, 1.0)
        ],
    },
    "gpt_oss": {
        **{name: values for name, values in _SHARED.items() if name != "hidden_act"},
        **{"attention_bias": [False, True], **_LAYERS, "num_local_experts": [4, 6]},
        **{"num_experts_per_tok": [1, 3], "rope_parameters": [*_SCALED, _UNROUNDED]},
    },
    "gemma2": {**_GEMMA, **_ROPES, "attn_logit_softcapping": [None, 1.0, 16.0]},
    "gemma3_text": {**_GEMMA, **_TWO_ROPES},
}


def experts(kind: str, k: int) -> str:
    """Returns the name of a model of one layer of 8 experts, with a loss for their balance."""
    name = f"{kind} of {k} experts"
    config = {**_GROUPED, "hidden_size": 24, "num_hidden_layers": 1, "num_experts_per_tok": k}
    config |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    of_qwen = {"num_experts": 8, "moe_intermediate_size": 12}
    config |= of_qwen if kind == "qwen3_moe" else {"num_local_experts": 8}
    _ALL[name] = kind, config
    return name


def random_model(kind: str, seed: int, repeats: int = 1) -> str:
    """Returns the name of a model of a type with a random config.

    The model has one layer or, if layers differ, two of random kinds; `repeats` repeats them.
    """
    name = f"{kind}-{seed}-{repeats}"
    if name not in _ALL:
        draw = np.random.default_rng([seed, *kind.encode()])
        config = {each: values[draw.integers(len(values))] for each, values in KINDS[kind].items()}
        if kind == "gpt2":
            _ALL[name] = kind, {**_GPT2, "n_layer": repeats, **config}
            return name
        pattern = [_FULL]
        if "layer_types" in config:
            pattern = [(_FULL, _SLIDING)[n] for n in draw.integers(2, size=2)]
            uses = config.get("use_sliding_window", True)
            config["layer_types"] = (pattern if uses else [_FULL] * 2) * repeats
        sizes = {"hidden_size": 32 if kind == "phi3" else 24}
        sizes |= {"num_hidden_layers": len(pattern) * repeats}
        sizes["pad_token_id"] = None  # the padding's embedding would have no gradient in PyTorch
        given = {key: value for key, value in config.items() if key != "head_dim" or value}
        _ALL[name] = kind, {**_LLAMA, **sizes, **given}
    return name


_T5 = dict(vocab_size=VOCAB, d_model=20, d_ff=28, d_kv=4, num_layers=2, num_heads=4)
_T5 |= dict(num_decoder_layers=1, dropout_rate=0.0, decoder_start_token_id=0)
_T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=10)

SEQUENCE_TO_SEQUENCE: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5_v1_1": (
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}
_BERT = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4)
_BERT |= dict(intermediate_size=28, max_position_embeddings=17)
_VIT = dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=4, intermediate_size=28)
_VIT |= dict(image_size=[8, 12], patch_size=2, num_channels=3, num_labels=3)

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_masked": ("BertForMaskedLM", _BERT),
    "bert_masked_relu": (
        "BertForMaskedLM",
        {**_BERT, "hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 3},
    ),
    "bert_masked_untied": ("BertForMaskedLM", {**_BERT, "tie_word_embeddings": False}),
    "bert_classifier": ("BertForSequenceClassification", {**_BERT, "num_labels": 3}),
    "bert_classifier_of_two": ("BertForSequenceClassification", _BERT),
    "vit": ("ViTForImageClassification", _VIT),
    "vit_plain": (
        "ViTForImageClassification",
        {**_VIT, "qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    ),
}
_ALL = {**LANGUAGE_MODELS, **SEQUENCE_TO_SEQUENCE, **ENCODERS}

MASK = 5
_TOKENIZER = {
    "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "the": 1}},
    "added_tokens": [{"id": MASK, "content": "[MASK]", "special": True}],
}
# The image processor's config.
_PROCESSOR = dict(do_normalize=True, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.5])


@functools.cache
def directory(name: str) -> Path:
    """Returns a model's directory; all weights are random, also those that are initially 0 or 1."""
    if name in _CHANGED:
        return _CHANGED[name]
    import torch

    model_class, (kind, config) = _class_of(name), _ALL[name]
    torch.manual_seed(1)
    model = model_class(model_class.config_class(initializer_range=0.2, **config))
    if name == "t5_v1_1":  # `transformers` ties the weights of a new model, not of a loaded one
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, config["d_model"]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        if kind == "gpt_oss":  # published in bfloat16
            model.bfloat16()
        if name == "bert_masked_untied":  # the second bias is unused or equal
            model.cls.predictions.bias.copy_(model.cls.predictions.decoder.bias)
    path = _scratch() / name
    model.save_pretrained(path)
    if name == "vit":
        (path / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    if name == "bert_masked":
        (path / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    return path


def _class_of(name: str) -> Any:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = _ALL[name][0]
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, kind))


_CHANGED: dict[str, Path] = {}


def with_entries(name: str, entries: dict[str, Any]) -> str:
    """Returns the name of a model with the same weights and a changed `config.json`."""
    made = f"{name} with {entries}"
    if made not in _CHANGED:
        path = Path(shutil.copytree(directory(name), _scratch() / f"changed-{len(_CHANGED)}"))
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, **entries}))
        _CHANGED[made], _ALL[made] = path, _ALL[name]
    return made


@functools.cache
def loaded(name: str) -> Any:
    """Returns a directory's model, loaded by `transformers`."""
    return _with_plain_experts(_class_of(name).from_pretrained(directory(name)).eval())


def loaded_whole(name: str, path: Path) -> Any:
    """Loads a model from `path`, and checks that no tensor is missing or left over."""
    model, info = _class_of(name).from_pretrained(path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def _with_plain_experts(model: Any) -> Any:
    """Chooses the implementation of experts that supports float64 and matrices of any size."""
    if hasattr(model.config, "num_local_experts"):
        model.set_experts_implementation("eager")
    return model


def float64() -> Any:
    """Returns a context in which PyTorch code that asks for float32 gets float64.

    Constants are rounded to float32, because they are float32 in both models.
    """
    import torch

    def gelu(x: Any, approximate: str = "none") -> Any:
        root, scale, cube = map(wide, (0.5**0.5, (2 / np.pi) ** 0.5, 0.044715))
        is_tanh = approximate == "tanh"
        y = torch.tanh(scale * (x + cube * x**3)) if is_tanh else torch.erf(x * root)
        return 0.5 * x * (1 + y)

    replaced = {torch.Tensor.float: torch.Tensor.double, torch.nn.functional.gelu: gelu}

    def wide(value: Any) -> Any:
        if isinstance(value, float) and abs(value) < 1e38:
            return float(np.float32(value))
        return torch.float64 if value is torch.float32 else value

    class Wide(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            named = {key: wide(value) for key, value in (kwargs or {}).items()}
            return replaced.get(function, function)(*map(wide, args), **named)

    return Wide()


def in_float64(model: Any) -> Callable[..., Any]:
    """Makes a model compute in float64; returns a function from its inputs to its logits."""
    import torch

    _with_plain_experts(model.double())

    def logits(inputs: np.ndarray, **others: np.ndarray) -> Any:
        with float64():
            named = {key: torch.tensor(value) for key, value in others.items()}
            return model(torch.tensor(inputs), **named).logits

    return logits


@functools.cache
def _scratch() -> Path:
    import atexit

    path = Path(tempfile.mkdtemp(prefix="t2tp-huggingface-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def begin_token(name: str) -> int:
    """Returns the token that precedes the first target."""
    return loaded(name).config.bos_token_id or 0


def with_first(name: str, tokens: np.ndarray) -> np.ndarray:
    """Prepends the token that precedes the first target."""
    return np.pad(tokens, [(0, 0), (1, 0)], constant_values=begin_token(name))


def targets() -> np.ndarray:
    """Returns random tokens, [batch, length]."""
    return np.random.default_rng(0).integers(0, VOCAB, (4, LENGTH)).astype(np.int32)
