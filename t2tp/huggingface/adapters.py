"""Exports adapters (LoRA) as a PEFT directory, or merged into the weights of their base model.

PEFT has two matrices for each adapted module, `lora_A.weight` [rank, in] and `lora_B.weight` [out,
rank] (https://huggingface.co/docs/peft/developer_guides/checkpoint). A module of a Hugging Face
model may join several of our weights: GPT-2's `c_attn` joins queries, keys and values. The adapters
of these weights then become one adapter of a larger rank, with the A matrices stacked and the B
matrices in block-diagonal form. Conversely, one of our weights may contain all experts, while
Hugging Face's model has a module per expert.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from t2tp.building.adapters import DOWN, UP, Adapters
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.checkpoint.frozen_base import open_base
from t2tp.checkpoint.reading import BASE, TRAINABLE
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.safetensors_file import write
from t2tp.huggingface.tensor_map import TensorPiece, Variable
from t2tp.program.variables import average_of

_T = TypeVar("_T")

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."

# Maps the end of a class's name to PEFT's name for the task.
_TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
}


class MergedCheckpoint(Checkpoint):
    """The base model's checkpoint, read as if its weights included the adapters.

    `path` is the base's path. The metadata do not list trainable variables.
    """

    def __init__(self, tuned: Checkpoint, adapters: Adapters, dtype: str = "") -> None:
        """Opens the base model's checkpoint, or raises BaseError.

        `tuned` has the adapters and other trained variables. `dtype` is the dtype of adapted
        weights; "" means the base's dtype.
        """
        base = open_base(tuned)
        super().__init__((base or tuned).path)
        trained = self.metadata.pop(TRAINABLE, []) if base else []
        self._tuned, self._scale = tuned, adapters.scale
        self._dtype = tf.as_dtype(dtype) if dtype else None
        renamed = tuned.metadata.get(BASE, {}).get("names", {})
        # The recorded name of a weight that has a moving average is the average's name.
        ours_of = {theirs.removesuffix(average_of("")): ours for ours, theirs in renamed.items()}
        weights = [ours_of.get(name, name) for name in trained or super().shapes()]
        # weight -> its name in the base
        self._names = {name: renamed.get(name, name) for name in weights}
        self._trained_whole = [name for name in _trained(tuned) if not is_adapter(name)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each weight, by name."""
        return self._joined(super().shapes(), self._tuned.shapes())

    def dtypes(self) -> dict[str, tf.DType]:
        """Returns the dtype of each weight, by name."""
        found = self._joined(super().dtypes(), self._tuned.dtypes())
        if self._dtype is None:
            return found
        return {name: self._dtype if self._is_adapted(name) else found[name] for name in found}

    def read(self, slices: Sequence[Slice]) -> list[tf.Tensor]:
        """Reads slices of weights, and adds the adapters' products to them in float32."""
        return [self._read(each) for each in slices]

    def _read(self, part: Slice) -> tf.Tensor:
        if part.name in self._trained_whole:
            return self._tuned.read([part])[0]
        name = self._names[part.name]
        stored = super().dtypes()[name]
        (value,) = super().read([Slice(name, part.shape, part.begin, part.size, stored)])
        if not self._is_adapted(part.name):
            return value
        with tf.device("CPU:0"):
            change = self._scale * _product(self._tuned, part)
            return tf.cast(tf.cast(value, tf.float32) + change, self._dtype or stored)

    def _is_adapted(self, name: str) -> bool:
        return f"{name}{DOWN}" in self._tuned.shapes()

    def _joined(self, of_base: Mapping[str, _T], of_tuned: Mapping[str, _T]) -> dict[str, _T]:
        whole = {name: of_tuned[name] for name in self._trained_whole}
        return {ours: of_base[theirs] for ours, theirs in self._names.items()} | whole


def is_adapter(name: str) -> bool:
    """Whether a variable is a matrix of an adapter."""
    return name.endswith((DOWN, UP))


def _trained(saved: Checkpoint) -> list[str]:
    return saved.metadata.get(TRAINABLE, [])


def _product(tuned: Checkpoint, part: Slice) -> np.ndarray:
    """Returns a slice of the product A B, in the shape of the adapted weight's slice."""
    down, up = (tuned.shapes()[f"{part.name}{end}"] for end in (DOWN, UP))
    rank = down[-1]
    experts = len(down) + len(up) - len(part.shape) - 2  # 1 if each expert has an adapter, else 0
    reduced = len(down) - 1  # number of A's dimensions before the rank, including the experts
    begin, size = part.begin, part.size
    a = _read(tuned, f"{part.name}{DOWN}", (*begin[:reduced], 0), (*size[:reduced], rank))
    of_experts, after = (begin[:experts], size[:experts]), (begin[reduced:], size[reduced:])
    b = _read(
        tuned, f"{part.name}{UP}", (*of_experts[0], 0, *after[0]), (*of_experts[1], rank, *after[1])
    )
    lead = math.prod(size[:experts])
    flat = a.reshape(lead, -1, rank) @ b.reshape(lead, rank, -1)
    return flat.reshape(size)


def _read(saved: Checkpoint, name: str, begin: Sequence[int], size: Sequence[int]) -> np.ndarray:
    dtype = saved.dtypes()[name]
    part = Slice(name, saved.shapes()[name], tuple(begin), tuple(size), dtype)
    return saved.read([part])[0].numpy().astype(np.float32)


def export_adapters(
    tuned: Checkpoint,
    variables: Sequence[Variable],
    adapters: Adapters,
    config: Mapping[str, Any],
    directory: Path,
    dtype: str = "",
) -> None:
    """Writes `adapter_config.json` and `adapter_model.safetensors` for the checkpoint `tuned`.

    `config` is the model's `config.json`. The dtype "" means float32.

    Raises:
      ConversionError: a trained variable has no counterpart in PEFT.
    """
    others = [name for name in _trained(tuned) if not is_adapter(name)]
    if others:
        raise ConversionError(
            f"{others[0]} was trained in addition to the adapters, and PEFT's files have no"
            " place for it: write the merged model with --merge_lora"
        )
    modules = _modules(tuned, variables)
    kind = np.dtype(tf.as_dtype(dtype or "float32").as_numpy_dtype)
    tensors = {}
    for name, module in modules.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = module.down.astype(kind)
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = module.up.astype(kind)
    write(directory / WEIGHTS_FILE, dict(sorted(tensors.items())))
    text = json.dumps(_config(modules, variables, adapters, config), indent=2, sort_keys=True)
    (directory / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def _modules(tuned: Checkpoint, variables: Sequence[Variable]) -> dict[str, _Adapter]:
    """Returns the adapters of the Hugging Face model's modules, by the modules' names."""
    shapes = tuned.shapes()
    of_module: dict[str, list[_Adapter]] = {}
    for variable in variables:
        if f"{variable.name}{DOWN}" in shapes:
            for piece in variable.pieces:
                part = _Adapter.read(tuned, piece, variable.name)
                of_module.setdefault(piece.theirs.removesuffix(".weight"), []).append(part)
    return {name: _joined(parts) for name, parts in of_module.items()}


@dataclass(frozen=True)
class _Adapter:
    """The adapter of one of our weights, or of a module with several, in the module's dimensions.

    Attributes:
      down: the A matrix, [rank, in].
      up: the B matrix, [out, rank].
      begin: index of the weight's first output in the module.
      size: number of outputs of the module.
      is_in_out: whether the module's weight is [in, out], as in GPT-2's `Conv1D`.
    """

    down: np.ndarray
    up: np.ndarray
    begin: int
    size: int
    is_in_out: bool

    @classmethod
    def read(cls, tuned: Checkpoint, piece: TensorPiece, name: str) -> _Adapter:
        """Reads the adapter of our weight `name` for one of its pieces."""
        down, up = (_of_piece(tuned, f"{name}{end}", piece) for end in (DOWN, UP))
        # The index of each of our dimensions among the dimensions of Hugging Face's tensor.
        places = piece.order if piece.part is None else piece.order[1:]
        reduced, made = places[: down.ndim - 1], places[down.ndim - 1 :]
        rank = down.shape[-1]
        size = up.size // rank
        is_in_out = max(reduced) < min(made)
        outputs = size if is_in_out else piece.shape[0]
        flat_down = np.moveaxis(down, -1, 0).transpose(0, *(1 + np.argsort(reduced)))
        flat_up = np.moveaxis(up, 0, -1).transpose(*np.argsort(made), up.ndim - 1)
        return cls(
            flat_down.reshape(rank, -1),
            flat_up.reshape(-1, rank),
            piece.rows[0] + (piece.part or 0) * size,
            size * piece.sizes[piece.order[0]] if piece.part is not None else outputs,
            is_in_out,
        )


def _joined(parts: Sequence[_Adapter]) -> _Adapter:
    """Joins the adapters of a module's weights, which compute different outputs of the module."""
    rank = sum(len(part.down) for part in parts)
    up = np.zeros((parts[0].size, rank), np.float32)
    column = 0
    for part in parts:
        width = len(part.down)
        rows = slice(part.begin, part.begin + len(part.up))
        up[rows, column : column + width] = part.up
        column += width
    down = np.concatenate([part.down for part in parts])
    return replace(parts[0], down=down, up=up, begin=0)


def _of_piece(saved: Checkpoint, name: str, piece: TensorPiece) -> np.ndarray:
    """Reads one of an adapter's two matrices, [in..., rank] or [rank, out...]."""
    shape = saved.shapes()[name]
    if piece.expert is None:
        return _read(saved, name, [0] * len(shape), shape)
    begin, size = [piece.expert, *(0 for _ in shape[1:])], [1, *shape[1:]]
    return _read(saved, name, begin, size)[0]


def _config(
    modules: Mapping[str, _Adapter],
    variables: Sequence[Variable],
    adapters: Adapters,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the contents of `adapter_config.json`."""
    (architecture,) = config.get("architectures") or [""]
    task = next((task for end, task in _TASKS.items() if architecture.endswith(end)), None)
    pieces = [(p.theirs.removesuffix(".weight"), p) for each in variables for p in each.pieces]
    others = {_end(name, 1) for name, _ in pieces if name not in modules}
    ends = {name: _end(name, 2 if _end(name, 1) in others else 1) for name in modules}
    ranks = {ends[name]: len(module.down) for name, module in modules.items()}
    has_experts = any(piece.expert is not None for name, piece in pieces if name in modules)
    joined = {end: rank for end, rank in ranks.items() if rank != adapters.rank}
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": config.get("_name_or_path"),
        "inference_mode": True,
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "target_modules": sorted(set(ends.values())),
        # The scale, alpha / rank, is equal in all modules.
        "rank_pattern": joined,
        "alpha_pattern": {end: adapters.scale * rank for end, rank in joined.items()},
        # PEFT keeps all experts' matrices in one parameter, and rejects dropout for it.
        "lora_dropout": 0.0 if has_experts else adapters.dropout,
        "bias": "none",
        "fan_in_fan_out": next(iter(modules.values())).is_in_out,
        "modules_to_save": None,
    }


def _end(name: str, count: int) -> str:
    """Returns the last `count` words of a dotted name."""
    return ".".join(name.split(".")[-count:])
