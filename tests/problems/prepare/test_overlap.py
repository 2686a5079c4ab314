"""Examples of any kind that occur in two splits are found and reported."""

import numpy as np
import pytest

from t2tp import problems
from t2tp.problems.algorithmic import AlgorithmicReverseBinary40
from t2tp.problems.data.columns import open_columns
from t2tp.problems.data.manifest import Manifest
from t2tp.problems.data.shards import ShardWriter
from t2tp.problems.prepare import overlap
from tests.problems.decoded import decoded


def columns_of(directory, split, examples, shards=2):
    """Returns the columns of examples that are written in several shards."""
    dtypes = {name: np.dtype(np.uint16) for name in examples[0]}
    directory.mkdir(exist_ok=True)
    for shard in range(shards):
        with ShardWriter(directory, f"{split}-{shard:05d}-of-{shards:05d}", dtypes) as writer:
            for example in examples[shard::shards]:
                writer.add({name: np.array(values) for name, values in example.items()})
    return open_columns(directory, split, shards, dtypes)


def examples(seed, count):
    """Returns short lists of few distinct values, so that many are equal."""
    random = np.random.default_rng(seed)
    return [
        {name: random.integers(0, 2, random.integers(0, 5)).tolist() for name in ("a", "b")}
        for _ in range(count)
    ]


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_what_stands_in_two_splits_is_counted(tmp_path, at_once):
    made = {split: examples(seed, 60) for seed, split in enumerate(("train", "dev", "test"))}
    made["dev"].append({"a": [2], "b": [1]})  # differs from {"a": [1], "b": [2]}
    made["train"].append({"a": [1], "b": [2]})
    columns = {s: [columns_of(tmp_path, s, each)] for s, each in made.items()}
    found = overlap.overlaps(columns, at_once, at_once)
    wanted = {
        split: {other: sum(each in made[other] for each in made[split]) for other in others}
        for split, others in (("dev", ["train"]), ("test", ["train", "dev"]))
    }
    assert found == wanted
    assert 0 < wanted["dev"]["train"] < 60


def test_each_making_says_what_it_finds(tmp_path, caplog):
    class ShortReverses(AlgorithmicReverseBinary40):
        sample_counts = {"train": 200, "validation": 30, "test": 30}
        max_tokens = 8

    manifest = ShortReverses().prepare(tmp_path)
    assert manifest == Manifest.read(tmp_path / "short_reverses")
    found = decoded(ShortReverses(), tmp_path)
    count = sum(each in found["train"] for each in found["validation"])
    assert manifest.overlaps["validation"] == {"train": count}
    assert f"{count} of 30 validation examples also occur in train" in caplog.text
    assert "validation: 30 examples, " in manifest.summary()
    assert f", {count} of them also in train\ntest" in manifest.summary()


def test_what_one_problem_of_a_mixture_holds_out_and_another_trains_on_is_found(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"{name} {n}\t{name} {n}\n" for n in range(20))
        )
    (tmp_path / "b.tsv").write_text((tmp_path / "a.tsv").read_text())
    (tmp_path / "b.en").write_text("".join(f"a {n}\n" for n in range(20)))
    problem = problems.find(
        "mixture:translate_tsv=1,translate_textfiles=1",
        f"files={tmp_path}/c.tsv,validation_files={tmp_path}/a.tsv,vocab_size=280,"
        f"inputs={tmp_path}/b.en,targets={tmp_path}/b.en",
    )
    manifest = problem.prepare(tmp_path / "data")
    assert manifest.overlaps["validation"]["train"] == 9
    for part in problem.parts:
        assert not part.check_prepared(problem.parts_dir(tmp_path / "data")).overlaps
