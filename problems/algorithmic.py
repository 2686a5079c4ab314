"""Algorithmic problems: generated sequences of digits, to check that a model can learn.

Names, lengths and tasks are as in tensor2tensor. Numbers are written with the lowest digit first.
"""

import abc
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.problems.codec import SymbolCodec
from t2tp.problems.data.sample import GeneratedSamples, Sample, Samples, StoredExample
from t2tp.problems.data.shards import token_dtype
from t2tp.problems.problem import AnyPath
from t2tp.problems.text_to_text import PairProblem
from t2tp.problems.vocab.vocabulary import END_OF_DOCUMENT

# Token of symbol 0; symbol n is token 2 + n, because 0 is padding and 1 is EOS.
_FIRST_SYMBOL = 2


class AlgorithmicProblem(PairProblem):
    """Sequences of symbols; a sample's "inputs" and "targets" are lists of symbols from 0.

    Attributes:
      base: number of different digits.
      max_symbols: max length of a sequence without EOS.
    """

    base = 2
    max_symbols = 40
    sample_counts: Mapping[str, int] = {"train": 100_000, "validation": 2_000, "test": 2_000}
    hparams_changes = {"max_length": 64}
    decode_metric_names = ("exact_match",)

    @property
    def num_symbols(self) -> int:
        """The number of symbols."""
        return self.base

    def inputs(self, generator: random.Random) -> list[int]:
        """Samples the inputs."""
        return self.digits(generator, self.max_symbols)

    @abc.abstractmethod
    def targets(self, inputs: list[int]) -> list[int]:
        """Computes the targets."""

    def digits(self, generator: random.Random, max_digits: int) -> list[int]:
        """Samples 1 to `max_digits` digits."""
        return [generator.randrange(self.base) for _ in range(generator.randint(1, max_digits))]

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the samples; problem, split and index determine each sample."""

        def sample(number: int) -> Sample:
            generator = random.Random(f"{type(self).__name__} {split} {number}")
            inputs = self.inputs(generator)
            return {"inputs": inputs, "targets": self.targets(inputs)}

        return GeneratedSamples(self.sample_counts[split], sample)

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtype of the tokens."""
        return {name: token_dtype(size) for name, size in self.vocab_sizes(directory).items()}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns the encoder from symbols to tokens."""
        codec = self.codec(directory)
        return lambda sample: StoredExample(
            {
                name: np.array([*codec.tokens(symbols), END_OF_DOCUMENT])
                for name, symbols in sample.items()
            }
        )

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns the decoder from tokens to symbols."""
        codec = self.codec(directory)
        return lambda columns: {
            name: codec.symbols(tokens.tolist()) for name, tokens in columns.items()
        }

    def codec(self, data_dir: AnyPath) -> SymbolCodec:
        """Returns the codec that writes symbols as numbers."""
        return SymbolCodec(self.name, self.num_symbols, _FIRST_SYMBOL)

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of different tokens."""
        return dict.fromkeys(("inputs", "targets"), _FIRST_SYMBOL + self.num_symbols)


@registry.register_problem
class AlgorithmicIdentityBinary40(AlgorithmicProblem):
    """Binary digits, copied."""

    def targets(self, inputs: list[int]) -> list[int]:
        """Returns the inputs."""
        return inputs


@registry.register_problem
class AlgorithmicIdentityDecimal40(AlgorithmicIdentityBinary40):
    """Decimal digits, copied."""

    base = 10


@registry.register_problem
class AlgorithmicReverseBinary40(AlgorithmicProblem):
    """Binary digits, reversed."""

    def targets(self, inputs: list[int]) -> list[int]:
        """Returns the inputs in reverse order."""
        return inputs[::-1]


@registry.register_problem
class AlgorithmicReverseDecimal40(AlgorithmicReverseBinary40):
    """Decimal digits, reversed."""

    base = 10


@registry.register_problem
class AlgorithmicShiftBinary40(AlgorithmicProblem):
    """Binary digits, each plus 2, so that no symbol occurs in both inputs and targets."""

    @property
    def num_symbols(self) -> int:
        """Twice the number of digits."""
        return 2 * self.base

    def targets(self, inputs: list[int]) -> list[int]:
        """Adds the base to each digit."""
        return [digit + self.base for digit in inputs]


@registry.register_problem
class AlgorithmicShiftDecimal40(AlgorithmicShiftBinary40):
    """Decimal digits, each plus 10."""

    base = 10


@registry.register_problem
class AlgorithmicAdditionBinary40(AlgorithmicProblem):
    """The sum of two binary numbers. Inputs are the numbers with a separator between them."""

    @property
    def num_symbols(self) -> int:
        """The number of digits and the separator."""
        return self.base + 1

    def inputs(self, generator: random.Random) -> list[int]:
        """Samples two numbers."""
        one = self.digits(generator, self.max_symbols // 2 - 1)
        other = self.digits(generator, self.max_symbols - 1 - len(one))
        return [*one, self.base, *other]

    def targets(self, inputs: list[int]) -> list[int]:
        """Computes the digits of the sum or product."""
        middle = inputs.index(self.base)
        one, other = (
            sum(digit * self.base**power for power, digit in enumerate(digits))
            for digits in (inputs[:middle], inputs[middle + 1 :])
        )
        number = self.result(one, other)
        digits = [number % self.base]
        while number := number // self.base:
            digits.append(number % self.base)
        return digits

    def result(self, one: int, other: int) -> int:
        """Adds."""
        return one + other


@registry.register_problem
class AlgorithmicAdditionDecimal40(AlgorithmicAdditionBinary40):
    """The sum of two decimal numbers."""

    base = 10


@registry.register_problem
class AlgorithmicMultiplicationBinary40(AlgorithmicAdditionBinary40):
    """The product of two binary numbers."""

    def result(self, one: int, other: int) -> int:
        """Multiplies."""
        return one * other


@registry.register_problem
class AlgorithmicMultiplicationDecimal40(AlgorithmicMultiplicationBinary40):
    """The product of two decimal numbers."""

    base = 10
