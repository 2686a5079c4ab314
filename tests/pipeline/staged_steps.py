"""Steps of small models in float64, with and without pipeline stages."""

import functools

import numpy as np

from t2tp.layout_check.double_program import DoubleProgram
from t2tp.mesh.layout import Layout
from t2tp.mesh.stages import Pipeline
from t2tp.mesh.storage import Storage
from t2tp.program.program import Program
from tests.layout_check.double_program import values_of
from tests.models.any_model import small_model
from tests.models.small_lm import DESCENT
from tests.models.small_transformers import FAMILIES
from tests.optim.sharded_programs import training_step

DROPOUT = {"layer_prepostprocess_dropout": 0.2, "attention_dropout": 0.2, "relu_dropout": 0.2}
SIZES = {"num_hidden_layers": 4, "d_model": 8, "d_ff": 16, "d_kv": 2}


def example(family, changes):
    """Returns a model of a family with dropout, a batch, and its features.

    With `teacher_layers`, the model has a teacher of another width and depth.
    """
    changes = dict(changes)
    layers = changes.pop("teacher_layers", 0)
    if family in FAMILIES:
        model, batch, features = small_model(family, **{**DROPOUT, **SIZES, **changes})
        if layers:
            wider = model.hparams.with_values({"num_hidden_layers": layers, "d_model": 12})
            model.teacher = type(model)(wider, model.vocab_sizes)
        return model, batch, features
    deep = {"num_hidden_layers": SIZES["num_hidden_layers"], **changes}
    if family == "vit":
        return small_model("vit", dropout=0.2, pooling="class", d_model=16, **deep)
    model, batch, features = small_model("images", relu_dropout=0.2, **deep)
    return model, {**batch, "weights": np.linspace(0, 1, 8, dtype=np.float32)}, features


def program(family, layout, microbatches, kind=DoubleProgram, **changes):
    """Returns the program of a family's training step."""
    model, _, features = example(family, {**DESCENT, "microbatches": microbatches, **changes})
    return kind(training_step(model), features, layout=layout, xla=False)


def values(program: Program, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of a step, and all variables after it."""
    shown = program(batch, step=3)
    found = {k: np.asarray(x) for k, x in shown.items() if not k.startswith("summaries/")}
    return found | values_of(program)


@functools.cache
def unpipelined(family: str, **changes: object) -> dict[str, np.ndarray]:
    """Returns the values of a step on one device."""
    return values(program(family, Layout(), 1, **changes), example(family, {})[1])


def with_and_without_stages(
    family: str,
    mesh: str,
    *,
    rules: str = "",
    schedule: str = "1f1b",
    chunks: int = 1,
    layers: str = "",
    zero: int = 0,
    microbatches: int = 4,
    **changes: object,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the values of a pipeline's step, and of the step on one device."""
    pipeline = Pipeline(schedule, chunks, layers)
    layout = Layout(mesh, f"layers:stage;{rules}", Storage(stage=zero), pipeline)
    found = values(program(family, layout, microbatches, **changes), example(family, {})[1])
    return found, unpipelined(family, **changes)


def assert_equal(found, wanted, tolerance=1e-12, least=1e-3):
    """Checks errors relative to each array's largest element, or to `least` if that is larger."""
    assert set(found) == set(wanted)
    errors = {
        name: np.max(np.abs(found[name] - x)) / max(np.max(np.abs(x)), least)
        for name, x in wanted.items()
    }
    # `not <` also finds NaN.
    wrong = {name: error for name, error in errors.items() if not error < tolerance}
    assert not wrong, wrong
