"""Small tokenizers of each kind, chat templates and conversations."""

import json
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[text]'")
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

BEGIN, END = "<s>", "<end>"
SPECIAL = [BEGIN, "<turn>", END, "<last>"]
_TEXTS = [
    "the quick brown fox",
    "jumps over the lazy dog",
    "user assistant system: Zürich 東京",
] * 9


def _bytes(**options: Any) -> tuple:
    before = pre_tokenizers.ByteLevel(**options)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    return models.BPE(), None, before, decoders.ByteLevel(), trainer


def _metaspace(model: Any, trainer: Any, scheme: str) -> tuple:
    kind = dict(prepend_scheme=scheme)
    return model, None, pre_tokenizers.Metaspace(**kind), decoders.Metaspace(**kind), trainer


_SPACED = dict(vocab_size=120, special_tokens=["<unk>", *SPECIAL], show_progress=False)
TOKENIZERS = {
    "byte-level": lambda: _bytes(add_prefix_space=False),
    "byte-level, space before a text": lambda: _bytes(add_prefix_space=True),
    "space before a text": lambda: _metaspace(
        models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**_SPACED), "first"
    ),
    "unigram, space before each part": lambda: _metaspace(
        models.Unigram(), trainers.UnigramTrainer(unk_token="<unk>", **_SPACED), "always"
    ),
    "word pieces": lambda: (
        models.WordPiece(unk_token="<unk>"),
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        trainers.WordPieceTrainer(**_SPACED),
    ),
}

_TEMPLATES = sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
TEMPLATES = {path.stem: path.read_text("utf-8") for path in _TEMPLATES}

_ASKED = [{"role": "user", "content": "the quick fox?"}]
CONVERSATIONS = [
    [*_ASKED, {"role": "assistant", "content": "jumps over"}],
    [
        {"role": "system", "content": "be lazy"},
        *_ASKED,
        {"role": "assistant", "content": "Zürich  東京\n"},
        {"role": "user", "content": " the dog"},
        {"role": "assistant", "content": " over \N{GRINNING FACE}"},
    ],
    [*_ASKED, {"role": "assistant", "content": ""}, *_ASKED, {"role": "assistant", "content": "a"}],
]


def write(directory: Path, kind: str, template: str = "", **config: Any) -> None:
    """Writes a tokenizer, its special tokens and its chat template."""
    model, normalizer, before, decoder, trainer = TOKENIZERS[kind]()
    made = tokenizers.Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = before, decoder
    made.train_from_iterator(_TEXTS, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BEGIN, "eos_token": END, **config}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({**named, **({"chat_template": template} if template else {})})
    )
