"""Special tokens of a tokenizer: tokens that begin a text, end it, or mask other tokens.

A model's files name the special tokens in several places. Older models, such as GPT-2 and BERT,
name them only in `config.json`, or not at all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from t2tp.typed_files import MAX_BYTES, MAX_TOKENIZER_BYTES, MaxEntries, Schema, read_json

TOKENIZER_FILE = "tokenizer.json"
# Files that name special tokens; the first file that names a token counts.
CONFIG_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Files that list the ids of tokens that end a text.
GENERATION_FILE = "generation_config.json"
_ID_FILES = (GENERATION_FILE, "config.json")


class AddedToken(TypedDict):
    """A token that is listed besides the model's."""

    id: int
    content: str


# Large tokenizers have 260,000 tokens (XLM-V: 900,000), and some thousands of them are added.
MAX_TOKENS = 1 << 20
AddedTokens = Annotated[list[AddedToken], MaxEntries(1 << 16)]

# The entries of a `tokenizer.json` that have the ids of tokens.
_TOKENIZER: Schema = {
    "model": {"vocab": Annotated[dict[str, int] | list[tuple[str, float]], MaxEntries(MAX_TOKENS)]},
    "added_tokens": AddedTokens,
}

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
    tokenizer = read_if_there(path, _TOKENIZER, MAX_TOKENIZER_BYTES)
    pieces = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(pieces, list):  # pieces and their log-probabilities
        pieces = {piece: number for number, (piece, _) in enumerate(pieces)}
    added = tokenizer.get("added_tokens") or ()
    return {**pieces, **{each["content"]: each["id"] for each in added}}


def read_if_there(
    path: Path, schema: Schema = dict[str, Any], max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Reads a JSON object; {} without the file."""
    try:
        return read_json(path, schema, max_bytes)
    except FileNotFoundError:
        return {}


def end_ids(path: Path) -> list[int]:
    """Returns the ids of the tokens that end a text, from a model's config file."""
    ends = read_if_there(path, {"eos_token_id": list[int | None] | int}).get("eos_token_id")
    return [each for each in (ends if isinstance(ends, list) else [ends]) if each is not None]
