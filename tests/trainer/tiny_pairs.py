"""A text-to-text problem and hparams small enough for whole runs in seconds."""

from pathlib import Path

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.data.sample import Samples
from t2tp.problems.text_to_text import Text2TextProblem

WORDS = ("one", "two", "three", "four", "five", "sechs", "sieben", "acht", "naïve")


@registry.register_problem
class TranslateUpperCase(Text2TextProblem):
    """Words to the same words in upper case."""

    vocabulary_size = 300
    splits = ("train", "validation")

    def samples(self, split: str, directory: Path, tmp_dir: Path) -> Samples:
        texts = [f"{one} {other}" for one in WORDS for other in WORDS]
        texts = texts[:60] if split == "train" else texts[60:]
        return [{"inputs": text, "targets": text.upper()} for text in texts]


@registry.register_hparams
def transformer_test() -> HParams:
    """1 layer of 16."""
    hparams = registry.hparams("transformer_tiny")
    values = dict(batch_size=8, max_length=32, d_model=16, d_ff=32, d_kv=8, num_heads=2)
    for name, value in {**values, "num_hidden_layers": 1}.items():
        hparams.set(name, value)
    return hparams
