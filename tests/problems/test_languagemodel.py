import math
from collections import Counter

import pytest

from t2tp.problems.metrics import compute
from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT


def documents(problem, data_dir, split):
    """Returns the documents of a split as stored, without EOS."""
    found = [[]]
    tokens = problem.stored(data_dir, split)["targets"]
    for token in tokens.span(0, tokens.size).tolist():
        if token == END_OF_DOCUMENT:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    return found


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_document_comes_back(problem, data_dir, split):
    vocabulary = problem.vocabulary(data_dir)
    wanted = [sample["text"] for sample in problem.samples(split, data_dir, data_dir)]
    stored = [vocabulary.decode(ids) for ids in documents(problem, data_dir, split)]
    assert Counter(stored) == Counter(wanted)
    assert split != "train" or stored != wanted  # shuffled
    assert problem.split_text(data_dir, split) == "".join(stored).encode()


def test_the_manifest_counts_what_there_is(problem, data_dir):
    for split, sizes in problem.check_prepared(data_dir).splits.items():
        stored = documents(problem, data_dir, split)
        assert sizes.examples == len(stored)
        assert sizes.tokens == sum(len(ids) + 1 for ids in stored)
        assert sizes.bytes == len(problem.split_text(data_dir, split))


def test_the_bytes_of_all_batches_are_those_of_the_text(problem, data_dir):
    stream = problem.stream(data_dir, "validation", batch_size=7, length=100)
    counted = sum(problem.counts(batch)["bytes"] for batch in stream)
    assert counted == len(problem.split_text(data_dir, "validation"))


def test_a_diverged_model_has_an_infinite_perplexity(problem):
    sums = {"nll": 1e6, "tokens": 1.0, "correct": 0.0, "bytes": 1.0}
    sums |= {"loss/cross_entropy": 1e6, "loss_weight/cross_entropy": 1.0}
    assert compute(problem.metric_names, sums)["perplexity"] == math.inf


def test_metrics_of_nothing_are_refused():
    with pytest.raises(ValueError, match="without a predicted token"):
        compute(["accuracy"], {"nll": 0.0, "tokens": 0.0, "correct": 0.0, "bytes": 0.0})


def test_missing_data_are_answered_with_the_command_that_makes_them(problem, tmp_path):
    for use in (problem.check_prepared, problem.vocab_sizes):
        with pytest.raises(FileNotFoundError) as error:
            use(tmp_path)
        assert f"t2tp_datagen --problem=tiny_stdlib --data_dir={tmp_path}" in str(error.value)


def test_prepare_keeps_what_is_there(problem, data_copy):
    lock = data_copy / ".tiny_stdlib.lock"
    lock.unlink()
    before = problem.directory(data_copy).stat()
    problem.prepare(data_copy)
    after = problem.directory(data_copy).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not lock.exists()  # reading existing data requires no write access
