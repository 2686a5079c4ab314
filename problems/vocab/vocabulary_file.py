"""The file of a vocabulary in the directory of a problem's data."""

import hashlib
from pathlib import Path

from t2tp.atomic_file import write_bytes
from t2tp.problems.vocab.characters import CharacterVocabulary
from t2tp.problems.vocab.special_tokens import TOKENIZER_FILE
from t2tp.problems.vocab.subwords import SubwordVocabulary
from t2tp.problems.vocab.tokenizer import TokenizerVocabulary
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.typed_files import MAX_TOKENIZER_BYTES, InvalidFileError, read_bytes


def write_vocabulary(directory: Path, vocabulary: Vocabulary) -> str:
    """Writes a vocabulary into a problem's directory; returns the name of its file."""
    write_bytes(directory / vocabulary.file_name, vocabulary.contents())
    return vocabulary.file_name


def find_vocabulary(directory: Path) -> Path | None:
    """Returns the file of the vocabulary in a problem's directory, or None."""
    kinds = (SubwordVocabulary, CharacterVocabulary, TokenizerVocabulary)
    names = (*(kind.file_name for kind in kinds), TOKENIZER_FILE)
    return next((directory / name for name in names if (directory / name).is_file()), None)


def load_vocabulary(directory: Path) -> Vocabulary:
    """Reads the vocabulary in a problem's directory.

    Raises:
      FileNotFoundError: there is none.
      ValueError: the file is damaged.
    """
    file = _existing_file(directory)
    if file.name == TOKENIZER_FILE:
        return TokenizerVocabulary.from_directory(directory)
    contents = read_bytes(file, 2 * MAX_TOKENIZER_BYTES)
    try:
        if file.name == SubwordVocabulary.file_name:
            return SubwordVocabulary(contents)
        if file.name == TokenizerVocabulary.file_name:
            return TokenizerVocabulary.read(contents)
        return CharacterVocabulary.read(contents)
    except ValueError as error:
        raise InvalidFileError(f"{file} is damaged: {error}") from error


def vocabulary_sha256(directory: Path) -> str:
    """Returns the SHA-256 of the vocabulary's file, as in manifests.

    Raises:
      FileNotFoundError: there is no vocabulary.
    """
    file = _existing_file(directory)
    # A problem's data have the tokenizer and its end tokens in one file. In a Hugging Face
    # directory, files next to `tokenizer.json` list the end tokens. So the digest of such a
    # directory is the digest of the file that a problem's data would have.
    is_theirs = file.name == TOKENIZER_FILE
    contents = load_vocabulary(directory).contents() if is_theirs else file.read_bytes()
    return hashlib.sha256(contents).hexdigest()


def _existing_file(directory: Path) -> Path:
    file = find_vocabulary(directory)
    if file is None:
        raise FileNotFoundError(
            f"no vocabulary in {directory}: neither {SubwordVocabulary.file_name} nor "
            f"{CharacterVocabulary.file_name} nor {TOKENIZER_FILE} is there"
        )
    return file
