"""Each family of transformers with a few thousand parameters, and batches for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

import t2tp
import t2tp.hparams
import t2tp.models
from t2tp import registry
from t2tp.hparam import HParams
from t2tp.models.model import EXAMPLE_INDEX, Model
from tests.models import small_lm
from tests.models.small_lm import BATCH, LENGTH, VOCAB_SIZE, changed, make_batch, outputs

SHAPE = f"batch:{BATCH};length:{LENGTH}"
SMALLER = {**small_lm.SMALLER, "num_hidden_layers": 1}
WITH_EXPERTS = {"num_experts": 4, "moe_every": 1, "moe_capacity_factor_train": 1.0}
NO_DROPOUT = {"layer_prepostprocess_dropout": 0.0, "attention_dropout": 0.0}
ALL_DROPOUT = {
    "layer_prepostprocess_dropout": 0.2,
    "layer_prepostprocess_dropout_broadcast_dims": ["length"],
    "attention_dropout": 0.1,
    "relu_dropout": 0.1,
}


@dataclass(frozen=True)
class Family:
    """A model with its tiny set, which is made smaller.

    Language models have the plain tiny set.

    Attributes:
      model: its registered name.
      batch: function that makes a batch.
      vocab_sizes: vocabulary sizes of the problem.
      changes: changes of hparams.
    """

    model: str
    batch: Callable[[], dict[str, np.ndarray]]
    vocab_sizes: dict[str, int]
    changes: dict[str, object]

    def hparams(self, **changes: object) -> HParams:
        """Returns the tiny set, made smaller and changed."""
        plain = "_plain" if self.model == "transformer_lm" else ""
        return changed(f"{self.model}{plain}_tiny", **{**SMALLER, **self.changes, **changes})

    def make(self, **changes: object) -> Model:
        """Returns the model."""
        return registry.model(self.model)(self.hparams(**changes), self.vocab_sizes)

    def features(self) -> dict[str, t2tp.Feature]:
        """Returns the features of the family's batch."""
        return {name: feature_of(array) for name, array in self.batch().items()}


def feature_of(array: np.ndarray, length: str = "length") -> t2tp.Feature:
    """Returns the feature of an array [batch] or [batch, length]."""
    names = ("batch", length)[: array.ndim]
    shape = ";".join(f"{name}:{size}" for name, size in zip(names, array.shape, strict=True))
    return t2tp.Feature(shape, tf.float32 if array.dtype == np.float32 else tf.int32)


def pairs() -> dict[str, np.ndarray]:
    """Returns packed pairs; the inputs are the rows of another batch, moved down by two rows.

    The lengths of documents differ between rows, so inputs and targets differ in length, and some
    segments have no inputs.
    """
    targets = make_batch(0)
    inputs = {name: np.roll(array, 2, axis=0) for name, array in make_batch(1).items()}
    return {**targets, **{name.replace("targets", "inputs"): x for name, x in inputs.items()}}


def classes(count: int = 2) -> dict[str, np.ndarray]:
    """Returns rows with one class each; the last row has no weight."""
    inputs = {name.replace("targets", "inputs"): x for name, x in make_batch(1).items()}
    return {
        **inputs,
        "targets": np.arange(BATCH, dtype=np.int32) % count,
        "weights": np.array([1.0] * (BATCH - 1) + [0.0], np.float32),
    }


def examples() -> dict[str, np.ndarray]:
    """Returns packed sequences and their indices, for the evaluation of masked language models."""
    return {**make_batch(), EXAMPLE_INDEX: np.arange(100, 100 + BATCH)}


def with_types(make: Callable[[], dict[str, np.ndarray]], name: str) -> Callable[[], dict]:
    """Adds token types: the last half of a row has another type, like BERT's second sentence."""

    def batch() -> dict[str, np.ndarray]:
        types = np.tile(np.arange(LENGTH, dtype=np.int32) * 2 // LENGTH, (BATCH, 1))
        return {**make(), f"{name}_types": types}

    return batch


TOKENS, BOTH = {"targets": VOCAB_SIZE}, {"inputs": VOCAB_SIZE, "targets": VOCAB_SIZE}
TWO_CLASSES = {"inputs": VOCAB_SIZE, "targets": 2}
TOP_2 = {**WITH_EXPERTS, "moe_gating": "top_2"}
FAMILIES = {
    "lm": Family(
        "transformer_lm", make_batch, TOKENS, {"token_shift": True, "embedding_shortcut": True}
    ),
    "encdec": Family("transformer", pairs, BOTH, {"token_shift": True, "embedding_shortcut": True}),
    "classes": Family("transformer_encoder", classes, TWO_CLASSES, NO_DROPOUT),
    "masked": Family("transformer_encoder", examples, TOKENS, NO_DROPOUT),
    "moe": Family("transformer_moe", make_batch, TOKENS, WITH_EXPERTS),
    "moe_encdec": Family("transformer_moe_encdec", pairs, BOTH, TOP_2),
    "moe_classes": Family("transformer_moe_encoder", classes, TWO_CLASSES, {**TOP_2, **NO_DROPOUT}),
    "moe_masked": Family("transformer_moe_encoder", examples, TOKENS, {**TOP_2, **NO_DROPOUT}),
}

AS_IN_BERT = {
    **NO_DROPOUT,
    "norm_position": "post",
    "mlp": "gelu_erf",
    "embedding_norm": True,
    "token_types": 2,
    "mlm_head": True,
    "logits_bias": True,
    "pooler": True,
}
_MASKED, _CLASSES = with_types(examples, "targets"), with_types(classes, "inputs")
BERTS = {
    "bert_masked": Family("transformer_encoder", _MASKED, TOKENS, AS_IN_BERT),
    "bert_classes": Family("transformer_encoder", _CLASSES, TWO_CLASSES, AS_IN_BERT),
}
MEGATRON = "batch:data;experts:data;heads:model;kv_heads:model;d_ff:model;vocab:model"
LAYOUTS = {
    "one device": ("", ""),
    "data": ("data:4", MEGATRON),
    "tensor": ("model:4", "heads:model;d_ff:model;vocab:model"),
    "both": ("data:2;model:2", MEGATRON),
    "features": ("data:2;model:2", "batch:data;d_model:model"),
    "three axes": ("a:2;b:2;c:2", "batch:a;heads:b;d_ff:b;vocab:b;d_model:c"),
    "context": ("seq:2", "length:seq"),
    "context and tensor": ("seq:2;model:2", f"{MEGATRON};length:seq"),
    "context and both": ("data:2;seq:2;model:2", f"{MEGATRON};length:seq"),
    "experts": ("data:2;expert:2", "batch:data+expert;experts:expert"),
}


def loss_program(
    family, mesh_shape="", layout=MEGATRON, training=True, with_gradients=True, **changes
):
    """Returns a program that computes the `outputs` of a loss."""

    def step(mesh, features):
        out = family.make(**changes).loss(mesh, features, training)
        return outputs(mesh, out, with_gradients)

    return t2tp.Program(step, family.features(), mesh_shape=mesh_shape, layout=layout)


def assert_close(values, wanted, tolerance=5e-6):
    """Compares with a tolerance relative to the largest element, plus a small absolute one.

    The absolute tolerance is for gradients that are 0 in exact arithmetic, such as the gradients of
    key biases.
    """
    for name, value in wanted.items():
        atol = tolerance * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(values[name], value, rtol=0, atol=atol, err_msg=name)
