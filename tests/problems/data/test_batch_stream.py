from collections import Counter

import numpy as np
import pytest

LENGTH = 1024


def stream(problem, data_dir, batch_size, split="train", **options):
    return problem.stream(data_dir, split, batch_size=batch_size, length=LENGTH, **options)


def test_a_batch_has_named_features_of_global_shape(problem, data_dir):
    batch = stream(problem, data_dir, 3)[0]
    kinds = ("", "_segmentation", "_position", "_previous")
    assert list(batch) == [f"targets{kind}" for kind in kinds]
    assert list(batch) == list(problem.features)
    for name, (dimensions, dtype) in problem.features.items():
        assert dimensions in (("batch", "length"), ("batch",))
        assert batch[name].shape == (3, LENGTH)[: len(dimensions)]
        assert batch[name].dtype == batch[name][:].dtype == dtype == np.int32


def test_an_evaluation_is_one_pass_in_order_with_the_last_batch_filled_up(problem, data_dir):
    n = stream(problem, data_dir, 1, "validation").examples_per_epoch
    validation = stream(problem, data_dir, n - 3, "validation")
    assert len(validation) == 2
    assert validation[0].examples.tolist() == list(range(n - 3))
    last = validation[1]
    assert last.examples.tolist() == [n - 3, n - 2, n - 1] + [-1] * (n - 6)
    for feature in last.values():
        assert not feature[3 : n - 3].any()
    assert last["targets_segmentation"][0:3, 0:1].tolist() == [[1], [1], [1]]


def test_every_token_is_evaluated_once(problem, data_dir):
    validation = stream(problem, data_dir, 10, "validation")
    seen = Counter()
    for batch in validation:
        real = batch["targets_segmentation"][:] > 0
        seen.update(batch["targets"][:][real].tolist())
    assert sum(seen.values()) == problem.check_prepared(data_dir).splits["validation"].tokens


def test_what_is_not_there_is_refused(problem, data_dir):
    train, validation = stream(problem, data_dir, 8), stream(problem, data_dir, 8, "validation")
    with pytest.raises(IndexError, match="counted from 0"):
        train[-1]
    with pytest.raises(IndexError, match=f"one pass has {len(validation)}"):
        validation[len(validation)]
    with pytest.raises(TypeError):
        train[0:2]
    for index in (0, (slice(None), 3), (slice(None),) * 3):
        with pytest.raises(TypeError, match=r"feature\[0:2, 0:64\]"):
            train[0]["targets"][index]
    with pytest.raises(KeyError, match="the features are targets, targets_segmentation"):
        train[0]["inputs"]
    with pytest.raises(ValueError, match="did you mean validation"):
        stream(problem, data_dir, 8, "valid")
    for sizes in ({"batch_size": 0, "length": 8}, {"batch_size": 8, "length": 0}):
        with pytest.raises(ValueError, match="must be at least 1, is 0"):
            problem.stream(data_dir, "train", **sizes)
