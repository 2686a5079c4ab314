"""For all problems and models, metrics do not depend on the mesh, the batch size and the step."""

from collections import Counter

import pytest

import t2tp
from t2tp import problems, registry
from t2tp.mesh.layout import Layout
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.metrics import METRICS, compute, possible
from t2tp.trainer.inputs.problem_inputs import evaluation_inputs
from t2tp.trainer.model_fn import ModeKeys, model_fn_of
from tests.trainer import tiny_classes, tiny_pairs, tiny_problem  # noqa: F401 (registers problems)

TEXT = "languagemodel_encodings"
PAIRS = "translate_upper_case"
CLASSES = "sentiment_upper_case"
IMAGES = "image_digits"

SMALL = "d_model=16,d_ff=32,d_kv=8,num_heads=2,num_hidden_layers=1,max_length=32"
EXPERTS = f"{SMALL},num_experts=4,moe_every=1,moe_capacity_factor_eval=1.0"  # Tokens are dropped.
# Every kind of problem with every model that supports it: model, problem and hparams.
KINDS = [
    ("transformer_lm", TEXT, SMALL),
    ("transformer_lm", f"mixture:{TEXT}=1", SMALL),
    ("transformer_moe", TEXT, EXPERTS),
    ("transformer_encoder", TEXT, SMALL),  # a masked language model
    ("transformer_moe_encoder", TEXT, EXPERTS),
    ("transformer_encoder", CLASSES, SMALL),
    ("transformer_moe_encoder", CLASSES, EXPERTS),
    ("transformer", PAIRS, SMALL),
    ("transformer", "algorithmic_reverse_binary40", SMALL),
    ("transformer_moe_encdec", PAIRS, EXPERTS),
    ("mtf_image_transformer", "image_digits_gen", "d_model=16,d_ff=32,d_kv=8,num_heads=2"),
    ("mtf_resnet", IMAGES, ""),
    ("vit", IMAGES, "d_model=16,d_ff=32,num_heads=2,d_kv=8,num_hidden_layers=1"),
    ("mlp", IMAGES, ""),
]
SETS = {"mtf_image_transformer": "mtf_image_transformer_digits", "mtf_resnet": "mtf_resnet_digits"}
# Batch size, mesh and step. Most splits do not divide into batches of 4 or 16 rows.
EVALUATIONS = [(16, "", 0), (4, "data:2;model:2", 100_000)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Returns the directory for the data of all problems."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def made(directory, kind, monkeypatch):
    """Makes the data of a kind's problem, and returns their directory."""
    counts = {"train": 100, "validation": 200, "test": 100}
    monkeypatch.setattr(AlgorithmicProblem, "sample_counts", counts)
    problems.find(kind[1].removeprefix("mixture:").split("=")[0]).prepare(directory)
    return directory


def evaluated(data_dir, kind, batch_size, mesh_shape, step):
    """Returns all sums of the untrained model, and all metrics that are computed from them."""
    model, name, changes = kind
    problem, hparams = problems.find(name), registry.hparams(SETS.get(model, f"{model}_tiny"))
    problem.change_hparams(hparams)
    hparams.parse(f"{changes},batch_size={batch_size},mesh_shape={mesh_shape}".lstrip(","))
    inputs = evaluation_inputs(
        problem, data_dir, hparams, Layout.from_hparams(hparams), "validation"
    )
    model_fn = model_fn_of(registry.model(model), problem.vocab_sizes(data_dir), 10)
    program = t2tp.Program(
        lambda mesh, features: model_fn(mesh, features, ModeKeys.EVAL, hparams).outputs(),
        inputs.features,
        layout=t2tp.Layout(mesh_shape, hparams.layout),
    )
    sums: Counter[str] = Counter()
    for number in range(min(len(inputs.stream), 160 // batch_size)):
        batch = inputs.stream[number]
        sums.update({k: float(v) for k, v in program(batch, step=step).items()})
        sums.update(inputs.counts(batch))
    sums = {name.removeprefix("metrics/"): total for name, total in sums.items()}
    return {**sums, **compute(possible(METRICS, sums), sums)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=[f"{kind[0]} {kind[1]}" for kind in KINDS])
def test_any_batch_size_mesh_and_step_give_the_same_evaluation(made, kind):
    first, other = (evaluated(made, kind, *how) for how in EVALUATIONS)
    assert {"loss", "accuracy"} <= first.keys()
    kept = {name: v for name, v in other.items() if not name.startswith("summaries/")}
    assert kept == pytest.approx({name: first[name] for name in kept}, rel=1e-5)


def test_a_masked_language_model_has_no_bits_per_byte():
    """The model sees most of the text, so its loss on masked tokens does not measure the bytes."""
    sums = {"nll": 3.0, "tokens": 2.0, "bytes": 9.0, "correct": 1.0, "unmasked_tokens": 8.0}
    assert "bits_per_byte" not in possible(METRICS, sums)
    assert {"accuracy", "perplexity"} <= set(possible(METRICS, sums))
    with pytest.raises(ValueError, match="bits_per_byte means nothing for a masked"):
        compute(["bits_per_byte"], sums)
