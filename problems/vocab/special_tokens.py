"""Special tokens of a tokenizer: tokens that begin a text, end it, or mask other tokens.

A model's files name the special tokens in several places. Older models, such as GPT-2 and BERT,
name them only in `config.json`, or not at all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2tp import untrusted_json

TOKENIZER_FILE = "tokenizer.json"
# Files that name special tokens; the first file that names a token counts.
CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Files that list the ids of tokens that end a text.
GENERATION_FILE = "generation_config.json"
_ID_FILES = (GENERATION_FILE, "config.json")

# BERT's special tokens, which BERT's oldest files do not name.
_BERT_TOKENS = {"sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens as text; None: the tokenizer has no such token.

    Attributes:
      end: the token that training puts after a text: EOS, or BERT's separator.
      begin: the token before a text, such as BERT's `[CLS]`. A decoder's BOS is an hparam of the
        model, not a part of texts.
      mask: the token that replaces masked tokens in a masked language model.
      end_ids: ids of all tokens at which generation stops.
    """

    end: str | None
    begin: str | None
    mask: str | None
    end_ids: tuple[int, ...]


def read_special_tokens(directory: Path) -> SpecialTokens:
    """Reads the special tokens of the tokenizer in a directory.

    Raises:
      ValueError: a file is damaged.
      OSError: a file cannot be read.
    """
    ids = token_ids(directory / TOKENIZER_FILE)
    named = named_tokens(directory)

    def bert_token(name: str) -> str | None:
        return named.get(name) or (_BERT_TOKENS[name] if _BERT_TOKENS[name] in ids else None)

    listed = [token for file in _ID_FILES for token in end_ids(directory / file)]
    texts = {number: token for token, number in ids.items()}
    end = named.get("eos_token") or named.get("sep_token") or bert_token("sep_token")
    end = end or next((texts[token] for token in listed if token in texts), None)
    own = [ids[end]] if end in ids else []
    return SpecialTokens(
        end, bert_token("cls_token"), bert_token("mask_token"), tuple(dict.fromkeys(own + listed))
    )


def named_tokens(directory: Path) -> dict[str, str]:
    """Returns the special tokens that a directory's files name, such as `bos_token`, as text.

    Raises:
      ValueError, OSError: a file is damaged or cannot be read.
    """
    found: dict[str, str] = {}
    for file in CONFIG_FILES:
        for name, token in read_if_there(directory / file).items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str) and text:
                found.setdefault(name, text)
    return found


def token_ids(path: Path) -> dict[str, int]:
    """Returns the ids of the tokens in a `tokenizer.json`, by token; {} without the file.

    Raises:
      ValueError: the file is damaged.
      OSError: the file cannot be read.
    """
    tokenizer = read_if_there(path)
    with untrusted_json.as_damaged(path):
        pieces = (tokenizer.get("model") or {}).get("vocab") or {}
        if isinstance(pieces, list):  # pieces and their log-probabilities
            pieces = {piece[0]: number for number, piece in enumerate(pieces)}
        added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or ()}
        found = {**pieces, **added}
    untrusted_json.check_values(found, path, int)
    return found


def read_if_there(path: Path) -> dict[str, Any]:
    """Reads a JSON object; {} without the file."""
    try:
        return untrusted_json.read_object(path)
    except FileNotFoundError:
        return {}


def end_ids(path: Path) -> list[int]:
    """Returns the ids of the tokens that end a text, from a model's config file."""
    ends = read_if_there(path).get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    for each in ends:
        untrusted_json.check_types({"eos_token_id": each}, path, {"eos_token_id": int})
    return [each for each in ends if each is not None]
