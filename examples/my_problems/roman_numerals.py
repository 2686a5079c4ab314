"""Numbers to Roman numerals: a custom problem and an hparams set, in one file."""

from __future__ import annotations

from pathlib import Path

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.data.sample import Samples
from t2tp.problems.text_to_text import Text2TextProblem

_LETTERS = {
    "M": 1000,
    "CM": 900,
    "D": 500,
    "CD": 400,
    "C": 100,
    "XC": 90,
    "L": 50,
    "XL": 40,
    "X": 10,
    "IX": 9,
    "V": 5,
    "IV": 4,
    "I": 1,
}

# The numbers of each split, by their remainder when divided by ten.
_REMAINDERS = {"train": (0, 1, 2, 3, 5, 6, 7, 8), "validation": (4,), "test": (9,)}


def roman(number: int) -> str:
    """Returns a Roman numeral, for instance "MCMXCIV"."""
    written = ""
    for letters, value in _LETTERS.items():
        written += letters * (number // value)
        number %= value
    return written


@registry.register_problem
class RomanNumerals(Text2TextProblem):
    """Numbers below 4000 to Roman numerals."""

    vocabulary_kind = "byte"
    hparams_changes = {"max_length": 16}

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        """Returns the numbers of a split and their numerals."""
        numbers = [n for n in range(1, 4000) if n % 10 in _REMAINDERS[split]]
        return [{"inputs": str(number), "targets": roman(number)} for number in numbers]


@registry.register_hparams
def transformer_numerals() -> HParams:
    """1 layer of 64."""
    hparams = registry.hparams("transformer_tiny")
    hparams.num_hidden_layers = 1
    hparams.d_model = 64
    hparams.max_length = 16
    return hparams
