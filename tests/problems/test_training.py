"""Every registered problem is prepared, and a small model of its family trains on it."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

import t2tp
from t2tp import metrics, mtf, problems, registry
from t2tp.problems.algorithmic import AlgorithmicProblem
from t2tp.problems.metrics import needed_sums
from tests.problems.conftest import TinyStdlib

D_MODEL = mtf.Dimension("d_model", 16)
BATCH, LENGTH = 8, 512

REGISTERED = [
    name
    for name in registry.list_problems()
    if registry.problem(name).__module__.startswith("t2tp.problems.")
]


def logits_of(mesh, features, vocab):
    """Returns logits as the features require: per token, or of the class of a text or image."""
    targets = features["targets"]
    if "weights" not in features or len(targets.shape) > 1:
        seen = mtf.shift(targets, 1, targets.shape.dims[-1], wrap=False)
        return einsum(mesh, embedded(mesh, seen, vocab), [D_MODEL], vocab)
    inputs = features["inputs"]
    if inputs.dtype == tf.int32:
        entries = mtf.Dimension("entries", 512)
        x = mtf.reduce_mean(embedded(mesh, inputs, entries), reduced_dim=inputs.shape.dims[1])
        return einsum(mesh, x, [D_MODEL], vocab)
    seen = mtf.reduce_mean(inputs, reduced_dim=inputs.shape.dims[1])  # Per column of pixels.
    return einsum(mesh, seen, seen.shape.dims[1:], vocab)


def embedded(mesh, ids, entries):
    table = mtf.get_variable(mesh, "embedding", mtf.Shape([entries, D_MODEL]))
    return mtf.gather(table, ids, entries)


def einsum(mesh, x, dims, vocab):
    w = mtf.get_variable(mesh, "output", mtf.Shape([*dims, vocab]))
    kept = [dim for dim in x.shape.dims if dim not in dims]
    return mtf.einsum([x, w], output_shape=mtf.Shape([*kept, vocab]))


def program_of(problem, data_dir, stream):
    """Returns a program of gradient descent with the sums that the problem's metrics need."""
    specs = problem.features(BATCH, LENGTH)
    features = {
        name: t2tp.Feature(
            mtf.Shape(
                [mtf.Dimension(*dim) for dim in zip(specs[name].dimensions, shape, strict=True)]
            ),
            tf.as_dtype(specs[name].dtype),
        )
        for name, shape in stream.shapes()[0].items()
    }
    size = -(-problem.vocab_size(data_dir) // 4) * 4
    vocab = mtf.Dimension("vocab", size)

    def step(mesh, given):
        targets = given["targets"]
        logits = logits_of(mesh, given, vocab)
        if "weights" in given:
            weights = mtf.broadcast(given["weights"], targets.shape)
        else:
            weights = mtf.cast(mtf.not_equal(given["targets_segmentation"], 0), tf.float32)
        nll = mtf.layers.softmax_cross_entropy_with_logits(
            logits, mtf.one_hot(targets, vocab, dtype=tf.float32), vocab
        )
        sums = metrics.token_sums(nll, logits, targets, weights, vocab)
        sums |= metrics.correct_in_top_k(logits, targets, weights, vocab)
        sums |= metrics.sequence_sums(logits, targets, weights, vocab, targets.shape.dims[0])
        sums |= metrics.positive_sums(logits, targets, weights, vocab)
        # In an image, a weight applies to a whole column.
        rate = 0.02 if "inputs" in given and given["inputs"].dtype == tf.float32 else 0.5
        variables = [variable.outputs[0] for variable in mesh.graph.trainable_variables]
        gradients = mtf.gradients([sums["nll"] / sums["tokens"]], variables)
        for variable, gradient in zip(mesh.graph.trainable_variables, gradients, strict=True):
            mtf.assign_sub(variable, rate * gradient)
        wanted = needed_sums(problem.metric_names)
        loss = {"loss/nll": sums["nll"], "loss_weight/nll": sums["tokens"]}
        return {name: tensor for name, tensor in sums.items() if name in wanted} | loss

    return t2tp.Program(step, features, mesh_shape="a:2;b:2", layout="batch:a;vocab:b")


@pytest.fixture
def problem_of(monkeypatch, mocked, sources, tmp_path):
    """Returns a function: name -> the problem, with few and small samples."""
    monkeypatch.setattr(
        AlgorithmicProblem, "sample_counts", {"train": 40, "validation": 10, "test": 10}
    )
    records = [{"text": f"text {n}", "class": n % 2} for n in range(80)]
    pairs = [{"prompt": f"one {n}", "completion": f" eins {n}"} for n in range(80)]
    for file, each in (("records", records), ("instructions", pairs)):
        (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, each)))
    of_records = f"files={tmp_path}/records.jsonl,vocab_size=290"
    for suffix in ("tsv", "en", "de"):
        sides = ["one {}\teins {}" if suffix == "tsv" else f"{suffix} {{}}"] * 80
        lines = [line.format(n, n) for n, line in enumerate(sides)]
        (tmp_path / f"pairs.{suffix}").write_text("\n".join(lines))
    options = {
        "translate_tsv": f"files={tmp_path}/pairs.tsv,vocab_size=290",
        "translate_textfiles": f"inputs={tmp_path}/pairs.en,targets={tmp_path}/pairs.de,"
        "vocab_size=290",
        "languagemodel_textfiles": f"files={tmp_path}/pairs.en,documents=lines,vocab_size=290",
        "languagemodel_records": of_records,
        "text2text_records": f"{of_records},inputs=text,targets=text",
        "instructions": f"files={tmp_path}/instructions.jsonl,vocab_size=290",
        "text2class_records": f"{of_records},inputs=text,targets=class",
    }

    def problem(name):
        given = options.get(name, "")
        kind = registry.problem(name)
        if name.startswith("languagemodel_python_stdlib"):
            monkeypatch.setattr(kind, "source_dir", lambda self: sources)
        if not given and "vocab_size" in kind().options.values():
            given = "vocab_size=400" if kind.vocabulary_kind == "subword" else ""
        return problems.find(name, given)

    return problem


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTERED)
def test_a_model_learns_from_a_step(problem_of, tmp_path, name):
    problem = problem_of(name)
    problem.prepare(tmp_path)
    stream = problem.stream(tmp_path, "train", BATCH, LENGTH)
    program = program_of(problem, tmp_path, stream)
    losses = []
    for step in range(3):
        batch = stream[0]
        outputs = program(batch, step=step)
        sums = {name: float(outputs[name]) for name in outputs} | problem.counts(batch)
        figures = problem.metrics(sums)
        assert list(figures) == list(problem.metric_names)
        losses.append(figures["loss"])
    assert losses[2] < losses[0]


def test_all_that_should_be_registered_is():
    assert {
        *(f"languagemodel_python_stdlib{kind}" for kind in ("", "_bytes", "_characters")),
        *("image_digits", "image_digits_gen", "languagemodel_textfiles", "instructions"),
        *("translate_tsv", "translate_textfiles", "sentiment_imdb", "image_mnist"),
        *(f"languagemodel_{name}" for name in ("lm1b32k", "wiki40b_en", "c4")),
        *("translate_ende_wmt32k", "translate_enfr_wmt32k", "summarize_cnn_dailymail32k"),
        *(f"image_{name}" for name in ("cifar10", "imagenet224", "imagenet32", "imagenet64")),
    } <= set(REGISTERED)
    assert TinyStdlib.__name__ not in REGISTERED
