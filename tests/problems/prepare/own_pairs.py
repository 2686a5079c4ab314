"""Problems with pairs of random words, and functions that prepare their data."""

import itertools
import random

import pytest

from t2tp.problems.data.shards import ShardWriter
from t2tp.problems.prepare import shard_generation
from t2tp.problems.problem import TRAIN
from t2tp.problems.text_to_text import Text2TextProblem
from tests.files import files_in

WORDS = ["".join(letters) for letters in itertools.product("etaoin", repeat=3)]


def some_samples(seed, count):
    choose = random.Random(seed)
    return [
        {"inputs": f"{seed} {number}", "targets": " ".join(choose.choices(WORDS, k=5))}
        for number in range(count)
    ]


class OwnPairs(Text2TextProblem):
    """Pairs; the constructor is given the training samples."""

    vocabulary_kind = "byte"

    def __init__(self, train=None):
        super().__init__()
        self.train = some_samples("train", 200) if train is None else train

    def samples(self, split, directory, tmp_dir):
        return self.train if split == TRAIN else some_samples(split, 10)


class GeneratedPairs(OwnPairs):
    """Pairs that are generated one after another, as in tensor2tensor's problems."""

    def samples(self, split, directory, tmp_dir):
        yield from super().samples(split, directory, tmp_dir)


class SubwordPairs(OwnPairs):
    """Pairs with a vocabulary that depends on the samples."""

    vocabulary_kind = "subword"
    vocabulary_size = 300


def files_of(problem, data_dir):
    return files_in(problem.directory(data_dir))


def prepare_until(problem, data_dir, written, failure=KeyboardInterrupt, **settings):
    """Prepares the data, and fails after `written` examples."""

    class FailingWriter(ShardWriter):
        count = 0

        def add(self, *example):
            if FailingWriter.count == written:
                raise failure
            super().add(*example)
            FailingWriter.count += 1

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(shard_generation, "ShardWriter", FailingWriter)
        with pytest.raises(failure):
            problem.prepare(data_dir, **settings)
