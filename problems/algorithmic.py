"""Algorithmic problems: generated sequences of digits, to check that a model can learn.

Names, lengths and tasks are tensor2tensor's. Numbers are written with the lowest digit first.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.problems.codec import SymbolCodec
from t2tp.problems.data.sample import Sample, Samples, StoredExample
from t2tp.problems.data.shards import token_dtype
from t2tp.problems.problem import AnyPath
from t2tp.problems.text_to_text import PairProblem
from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT

# The token of a symbol is the symbol plus this: 0 is padding, 1 is EOS.
_FIRST_SYMBOL = 2


class AlgorithmicProblem(PairProblem):
    """Sequences of symbols: a sample has "inputs" and "targets", lists of symbols from 0.

    Attributes:
      base: number of digits.
      max_symbols: max length of a sequence without EOS.
      sample_counts: by split.
    """

    base: int
    max_symbols = 40
    sample_counts: Mapping[str, int] = {"train": 100_000, "validation": 2_000, "test": 2_000}
    hparams_changes = {"max_length": 64}
    decode_metric_names = ("exact_match",)

    @property
    def num_symbols(self) -> int:
        """The number of symbols: the digits, unless a problem has more."""
        return self.base

    @abc.abstractmethod
    def generate_sample(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Samples the inputs and computes the targets."""

    def digits(self, generator: random.Random, max_digits: int) -> list[int]:
        """Samples 1 to `max_digits` digits."""
        return [generator.randrange(self.base) for _ in range(generator.randint(1, max_digits))]

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the samples, each generated on access."""
        return _GeneratedSamples(self, split)

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of the tokens."""
        return {"inputs": token_dtype(self._vocab_size), "targets": token_dtype(self._vocab_size)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that encodes symbols as tokens."""
        codec = self._codec
        return lambda sample: StoredExample(
            {
                name: np.array([*codec.tokens(symbols), END_OF_DOCUMENT])
                for name, symbols in sample.items()
            }
        )

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns a function that decodes tokens into symbols."""
        codec = self._codec
        return lambda columns: {
            name: codec.symbols(tokens.tolist()) for name, tokens in columns.items()
        }

    def codec(self, data_dir: AnyPath) -> SymbolCodec:
        """Returns the codec of symbols written as numbers; it needs no data."""
        return self._codec

    @property
    def _codec(self) -> SymbolCodec:
        return SymbolCodec(self.name, self.num_symbols, _FIRST_SYMBOL)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of tokens, which is the same for both."""
        return {"inputs": self._vocab_size, "targets": self._vocab_size}

    @property
    def _vocab_size(self) -> int:
        return _FIRST_SYMBOL + self.num_symbols


class _GeneratedSamples:
    """Samples that are functions of the problem, the split and their index."""

    def __init__(self, problem: AlgorithmicProblem, split: str):
        self._problem = problem
        self._split = split

    def __len__(self) -> int:
        return self._problem.sample_counts[self._split]

    def __getitem__(self, number: int) -> Sample:
        kind = type(self._problem).__name__
        inputs, targets = self._problem.generate_sample(
            random.Random(f"{kind} {self._split} {number}")
        )
        return {"inputs": inputs, "targets": targets}


class Identity(AlgorithmicProblem):
    """Targets are the inputs."""

    def generate_sample(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Samples digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, digits


class Reverse(AlgorithmicProblem):
    """Targets are the inputs in reverse order."""

    def generate_sample(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Samples digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, digits[::-1]


class Shift(AlgorithmicProblem):
    """Targets are the inputs plus the base, which are distinct symbols."""

    @property
    def num_symbols(self) -> int:
        """The number of symbols: twice the digits."""
        return 2 * self.base

    def generate_sample(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Samples digits."""
        digits = self.digits(generator, self.max_symbols)
        return digits, [digit + self.base for digit in digits]


class _ArithmeticProblem(AlgorithmicProblem):
    """Inputs are two numbers with a separator between them."""

    @property
    def num_symbols(self) -> int:
        """The number of symbols: the digits and the separator."""
        return self.base + 1

    @abc.abstractmethod
    def result(self, one: int, other: int) -> int:
        """Computes the target."""

    def generate_sample(self, generator: random.Random) -> tuple[list[int], list[int]]:
        """Samples two numbers."""
        one = self.digits(generator, self.max_symbols // 2 - 1)
        other = self.digits(generator, self.max_symbols - 1 - len(one))
        result = self.result(_number(one, self.base), _number(other, self.base))
        return [*one, self.base, *other], _digits_of(result, self.base)


class Addition(_ArithmeticProblem):
    """Targets are the sum of two numbers."""

    def result(self, one: int, other: int) -> int:
        """Adds."""
        return one + other


class Multiplication(_ArithmeticProblem):
    """Targets are the product of two numbers."""

    def result(self, one: int, other: int) -> int:
        """Multiplies."""
        return one * other


def _number(digits: list[int], base: int) -> int:
    return sum(digit * base**power for power, digit in enumerate(digits))


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
    """Binary digits, reversed."""

    base = 2


@registry.register_problem
class AlgorithmicReverseDecimal40(Reverse):
    """Decimal digits, reversed."""

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
