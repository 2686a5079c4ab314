"""A problem and hparams small enough for whole runs of the trainer in seconds."""

import sysconfig
from pathlib import Path

import t2tp.hparams  # noqa: F401  (registers the sets)
from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.python_stdlib import LanguagemodelPythonStdlib


@registry.register_problem
class LanguagemodelEncodings(LanguagemodelPythonStdlib):
    """The standard library's `encodings`: 120 small files."""

    vocabulary_size = 512

    def source_dir(self) -> Path:
        return Path(sysconfig.get_path("stdlib")) / "encodings"


@registry.register_hparams
def transformer_lm_test() -> HParams:
    """1 layer of 16."""
    hparams = registry.hparams("transformer_lm_plain_tiny")
    hparams.batch_size = 8
    hparams.max_length = 32
    hparams.d_model = 16
    hparams.d_ff = 32
    hparams.d_kv = 8
    hparams.num_heads = 4
    hparams.num_hidden_layers = 1
    hparams.learning_rate_warmup_steps = 5
    return hparams
