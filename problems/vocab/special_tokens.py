"""Which tokens of a tokenizer begin a text, end it, and mask others.

A directory of Hugging Face says so in several files; old ones, of GPT-2 and BERT, in none but
`config.json`, or not at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENIZER_FILE = "tokenizer.json"
# The files that name special tokens, in the order in which they count.
CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_MODEL_CONFIG = "config.json"

# BERT's, of which its first files name none.
_OF_BERT = {"sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens as text; None: there is none.

    Attributes:
      end: ends a text: EOS, or BERT's separator.
      begin: begins a text, as BERT's `[CLS]`. What a decoder reads before its first token (BOS)
        is an hparam of the model, not a part of texts.
      mask: stands for another one in a masked language model.
    """

    end: str | None
    begin: str | None
    mask: str | None


def read_special_tokens(directory: Path) -> SpecialTokens:
    """Reads the special tokens of the tokenizer in a directory.

    Raises:
      ValueError: a file is not JSON.
      OSError: a file cannot be read.
    """
    ids = token_ids(_read(directory / TOKENIZER_FILE))
    named = named_tokens(directory)

    def of_bert(name: str) -> str | None:
        return named.get(name) or (_OF_BERT[name] if _OF_BERT[name] in ids else None)

    end = named.get("eos_token") or named.get("sep_token") or _end_of_model(directory, ids)
    return SpecialTokens(end or of_bert("sep_token"), of_bert("cls_token"), of_bert("mask_token"))


def named_tokens(directory: Path) -> dict[str, str]:
    """Returns the special tokens that a directory's files name, such as `bos_token`, as text.

    Raises:
      ValueError: a file is not JSON.
      OSError: a file cannot be read.
    """
    found: dict[str, str] = {}
    for file in CONFIG_FILES:
        for name, token in _read(directory / file).items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str) and text:
                found.setdefault(name, text)
    return found


def token_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Returns the ids of the tokens in the contents of a `tokenizer.json`."""
    pieces = (tokenizer.get("model") or {}).get("vocab") or {}
    if not isinstance(pieces, dict):  # A list of pieces and their probabilities.
        pieces = {piece[0]: number for number, piece in enumerate(pieces)}
    added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or ()}
    return {**pieces, **added}


def _end_of_model(directory: Path, ids: dict[str, int]) -> str | None:
    """Returns the token that `config.json` says ends a text."""
    end = _read(directory / _MODEL_CONFIG).get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    return next((token for token, number in ids.items() if number == end), None)


def _read(path: Path) -> dict[str, Any]:
    """Returns the contents of a file, or {} if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); download it again") from error
    return content if isinstance(content, dict) else {}
