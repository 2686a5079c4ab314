from collections import Counter

import numpy as np
import pytest

from t2tp import problems, registry
from t2tp.problems.algorithmic import AlgorithmicIdentityBinary40, AlgorithmicReverseBinary40
from t2tp.problems.data.batch_stream import OnePassStream
from t2tp.problems.data.mixture_stream import ConcatenatedSource, Stage
from t2tp.problems.mixture import Mixture
from tests.cases import mistakes


@registry.register_problem
class FewIdentities(AlgorithmicIdentityBinary40):
    """A problem with 70 training samples."""

    sample_counts = {"train": 70, "validation": 9, "test": 4}


@registry.register_problem
class FewReverses(AlgorithmicReverseBinary40):
    """A problem with 30 training samples."""

    sample_counts = {"train": 30, "validation": 5, "test": 4}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    problems.find("mixture:few_identities=1,few_reverses=1").prepare(directory)
    return directory


def stream(data_dir, shares, batch_size=6, seed=0, split="train"):
    return problems.find(f"mixture:{shares}").stream(data_dir, split, batch_size, 64, seed)


def rows(batches, begin, end):
    """Returns the examples of steps, concatenated; numbers below 70 are from the first problem."""
    return np.concatenate([batches[step].examples for step in range(begin, end)])


CASES = [
    ("few_identities=0.7,few_reverses=0.3", 10, 7),
    ("few_identities=1,few_reverses=2", 3, 1),
    ("few_identities=1/3,few_reverses=1/2", 5, 2),
    ("few_identities=1,few_reverses=0", 1, 1),
]


@pytest.mark.parametrize(("shares", "block", "of_first"), CASES)
def test_shares_are_exact_in_every_block(data_dir, shares, block, of_first):
    drawn = rows(stream(data_dir, shares), 0, 100).reshape(-1, block) < 70
    assert (drawn.sum(1) == of_first).all()
    if of_first < block:
        assert len({tuple(each) for each in drawn.tolist()}) > 1  # several different orders


WITHOUT_SHARES = [
    ("", 7, 10),  # 70 and 30 examples
    ("max_rows=30", 1, 2),
    ("temperature=1e6", 1, 2),
    ("temperature=2,few_reverses.arrangement=packed", None, None),
]


@pytest.mark.parametrize(("options", "of_first", "block"), WITHOUT_SHARES)
def test_without_shares_they_follow_from_the_sizes(data_dir, options, of_first, block):
    mixture = problems.find("mixture:few_identities,few_reverses", options)
    assert mixture.parts[0].given_options == {}
    batches = mixture.stream(data_dir, "train", 10, 64, seed=1)
    if block:
        drawn = rows(batches, 0, 50).reshape(-1, block) < 70
        assert (drawn.sum(1) == of_first).all()
    else:
        packed = len(mixture.train_examples(data_dir, 64).sources[1])
        share = (rows(batches, 0, 1000) < 70).mean()
        assert share == pytest.approx(70**0.5 / (70**0.5 + packed**0.5), abs=1e-3)


def test_a_schedule_goes_on_where_the_stage_before_ended(data_dir):
    shares = "few_identities=1,few_reverses=0;5:few_identities=1,few_reverses=4;9:few_reverses=1"
    batches = stream(data_dir, shares, 6)
    assert (rows(batches, 0, 5) < 70).all()
    second = rows(batches, 5, 9)
    assert (second.reshape(-1)[:20].reshape(-1, 5) < 70).sum(1).tolist() == [1] * 4
    assert (rows(batches, 9, 40) >= 70).all()
    drawn = rows(batches, 0, 80)
    for low, high in ((0, 70), (70, 100)):  # no example repeats before all others have occurred
        counts = Counter(drawn[(drawn >= low) & (drawn < high)].tolist())
        numbers = [counts[example] for example in range(low, high)]
        assert max(numbers) - min(numbers) <= 1


def test_an_evaluation_is_of_all_examples(data_dir):
    validation = stream(data_dir, "few_identities=0.9,few_reverses=0.1", 4, split="validation")
    assert len(validation) == 4  # 9 + 5 examples
    assert rows(validation, 0, 4).tolist() == [*range(14), -1, -1]
    last = np.asarray(validation[3]["targets_segmentation"])
    assert last[:2].any() and not last[2:].any()


def test_counts_are_those_of_the_problems(tmp_path):
    for i, word in enumerate(("alpha", "beta")):
        (tmp_path / f"{word}.txt").write_text("".join(f"{word} {n}\n" for n in range(300 + i)))
    common = f"files={tmp_path}/alpha.txt,documents=lines,vocab_size=290"
    one = problems.find("languagemodel_textfiles", common)
    one.prepare(tmp_path / "one")
    whole = one.examples(tmp_path / "one", "train", 32)
    both = ConcatenatedSource([whole, whole])
    mixture = Mixture("mixture:x", [one, one], [Stage(0, (1, 1))])
    counted = sum(mixture.counts(batch)["bytes"] for batch in OnePassStream(both, 7))
    assert counted == 2 * len(one.split_text(tmp_path / "one", "train"))


def test_another_vocabulary_is_refused_with_what_helps(tmp_path):
    @registry.register_problem
    class FewDecimals(FewReverses):
        """A problem with other tokens."""

        base = 10

    mixture = problems.find("mixture:few_identities=1,few_decimals=1")
    with pytest.raises(ValueError, match="few_identities and few_decimals cannot be mixed, as"):
        mixture.prepare(tmp_path)


@mistakes("mixtures")
def test_what_is_no_mixture_is_said(text, says):
    name, _, options = text.partition(" ")
    with pytest.raises(ValueError, match=says):
        problems.find(f"mixture:{name}", options)


def test_a_problem_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="did you mean few_identities"):
        problems.find("mixture:few_identitis=1,few_reverses=1")
