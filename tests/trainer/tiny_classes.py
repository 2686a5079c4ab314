"""Texts of two classes, small enough for whole runs in seconds."""

from pathlib import Path

from t2tp import registry
from t2tp.problems.data.sample import Samples
from t2tp.problems.text_to_class import Text2ClassProblem
from tests.trainer.tiny_pairs import WORDS


@registry.register_problem
class SentimentUpperCase(Text2ClassProblem):
    """Whether two words are written in upper case."""

    vocabulary_size = 300
    splits = ("train", "validation")
    class_names = ("lower", "upper")

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        texts = [f"{one} {other}" for one in WORDS for other in WORDS]
        texts = texts[:60] if split == "train" else texts[60:]
        return [
            {"inputs": text.upper() if number % 3 else text, "label": int(number % 3 > 0)}
            for number, text in enumerate(texts)
        ]
