"""Problems that are computed: sequences of digits, to see whether a model learns at all.

Names, lengths and meanings are tensor2tensor's. Numbers are written with the lowest digit first.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.problems.generation import Sample, Samples, Stored
from t2tp.problems.problem import AnyPath
from t2tp.problems.shards import token_dtype
from t2tp.problems.text_to_text import PairProblem
from t2tp.problems.vocabulary import END_OF_DOCUMENT

# The token of a symbol is the symbol plus this: 0 is padding, 1 ends a sequence.
_FIRST_SYMBOL = 2


class AlgorithmicProblem(PairProblem):
    """Sequences of symbols. A sample has "inputs" and "targets", lists of symbols from 0.

    Attributes:
        base: number of digits.
        max_symbols: most symbols of a sequence, its end not counted.
        sample_counts: by split.
    """

    base: int
    max_symbols = 40
    sample_counts: Mapping[str, int] = {"train": 100_000, "validation": 2_000, "test": 2_000}
    hparams_changes = {"max_length": 64}
    decode_metric_names = ("exact_match",)

    @property
    def num_symbols(self) -> int:
        """How many symbols there are: the digits, unless a problem has others besides."""
        return self.base

    @abc.abstractmethod
    def draw(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Draws inputs, and works out the targets."""

    def digits(self, generator: random.Random, most: int) -> list[int]:
        """Draws digits: from 1 to `most` of them."""
        return [generator.randrange(self.base) for _ in range(generator.randint(1, most))]

    def samples(self, split: str, folder: Path, tmp_dir: Path) -> Samples:
        """Returns the samples, each drawn when it is asked for."""
        return _Drawn(self, split)

    def columns(self, folder: Path) -> dict[str, np.dtype]:
        """Returns the dtype of the tokens."""
        return {"inputs": token_dtype(self._vocab_size), "targets": token_dtype(self._vocab_size)}

    def encoder(self, folder: Path) -> Callable[[Sample], Stored]:
        """Returns what makes tokens of symbols."""
        return lambda sample: Stored(
            {
                name: np.array([_FIRST_SYMBOL + each for each in symbols] + [END_OF_DOCUMENT])
                for name, symbols in sample.items()
            }
        )

    def decoder(self, folder: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns what makes symbols of tokens."""
        return lambda columns: {name: self.symbols(ids) for name, ids in columns.items()}

    def encode(self, data_dir: AnyPath, text: str) -> list[int]:
        """Returns the tokens of symbols with spaces between them, without an end.

        Raises:
            ValueError: there is no such symbol.
        """
        symbols = text.split()
        known = {str(symbol) for symbol in range(self.num_symbols)}
        for symbol in symbols:
            if symbol not in known:
                raise ValueError(
                    f"{self.name}: {symbol!r} is no symbol; they are 0 to {self.num_symbols - 1}, "
                    "with spaces between them"
                )
        return [_FIRST_SYMBOL + int(symbol) for symbol in symbols]

    def decode(self, data_dir: AnyPath, ids: Iterable[int]) -> str:
        """Returns the symbols of tokens, with spaces between them."""
        return " ".join(map(str, self.symbols(np.array(list(ids), np.int64))))

    def symbols(self, ids: np.ndarray) -> list[int]:
        """Returns the symbols of tokens; padding and ends stand for none."""
        return [token - _FIRST_SYMBOL for token in ids.tolist() if token >= _FIRST_SYMBOL]

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of tokens, which is the same for both."""
        return {"inputs": self._vocab_size, "targets": self._vocab_size}

    @property
    def _vocab_size(self) -> int:
        return _FIRST_SYMBOL + self.num_symbols


class _Drawn:
    """Samples that are functions of the problem, the split and their number."""

    def __init__(self, problem: AlgorithmicProblem, split: str):
        self._problem = problem
        self._split = split

    def __len__(self) -> int:
        return self._problem.sample_counts[self._split]

    def __getitem__(self, number: int) -> Sample:
        kind = type(self._problem).__name__
        inputs, targets = self._problem.draw(random.Random(f"{kind} {self._split} {number}"))
        return {"inputs": inputs, "targets": targets}


class Identity(AlgorithmicProblem):
    """The same again."""

    def draw(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Draws digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, digits


class Reverse(AlgorithmicProblem):
    """Backwards."""

    def draw(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Draws digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, digits[::-1]


class Shift(AlgorithmicProblem):
    """Each digit plus the base, as symbols of their own."""

    @property
    def num_symbols(self) -> int:
        """Twice the digits."""
        return 2 * self.base

    def draw(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Draws digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, [digit + self.base for digit in digits]


class _TwoNumbers(AlgorithmicProblem):
    """Two numbers with a symbol between them."""

    @property
    def num_symbols(self) -> int:
        """The digits and what separates."""
        return self.base + 1

    @abc.abstractmethod
    def result(self, one: int, other: int) -> int:
        """Computes the target."""

    def draw(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Draws two numbers."""
        one = self.digits(generator, self.max_symbols // 2 - 1)
        other = self.digits(generator, self.max_symbols - 1 - len(one))
        result = self.result(_number(one, self.base), _number(other, self.base))
        return [*one, self.base, *other], _digits_of(result, self.base)


class Addition(_TwoNumbers):
    """The sum of two numbers."""

    def result(self, one: int, other: int) -> int:
        """Adds."""
        return one + other


class Multiplication(_TwoNumbers):
    """The product of two numbers."""

    def result(self, one: int, other: int) -> int:
        """Multiplies."""
        return one * other


def _number(digits: list[int], base: int) -> int:
    return sum(digit * base**place for place, digit in enumerate(digits))


def _digits_of(number: int, base: int) -> list[int]:
    digits = [number % base]
    while number := number // base:
        digits.append(number % base)
    return digits


@registry.register_problem
class AlgorithmicIdentityBinary40(Identity):
    """Binary digits, copied."""

    base = 2


@registry.register_problem
class AlgorithmicIdentityDecimal40(Identity):
    """Decimal digits, copied."""

    base = 10


@registry.register_problem
class AlgorithmicReverseBinary40(Reverse):
    """Binary digits, backwards."""

    base = 2


@registry.register_problem
class AlgorithmicReverseDecimal40(Reverse):
    """Decimal digits, backwards."""

    base = 10


@registry.register_problem
class AlgorithmicShiftBinary40(Shift):
    """Binary digits, each plus 2."""

    base = 2


@registry.register_problem
class AlgorithmicShiftDecimal40(Shift):
    """Decimal digits, each plus 10."""

    base = 10


@registry.register_problem
class AlgorithmicAdditionBinary40(Addition):
    """The sum of two binary numbers."""

    base = 2


@registry.register_problem
class AlgorithmicAdditionDecimal40(Addition):
    """The sum of two decimal numbers."""

    base = 10


@registry.register_problem
class AlgorithmicMultiplicationBinary40(Multiplication):
    """The product of two binary numbers."""

    base = 2


@registry.register_problem
class AlgorithmicMultiplicationDecimal40(Multiplication):
    """The product of two decimal numbers."""

    base = 10
