"""Downloads models from the Hugging Face Hub, or from the server that HF_ENDPOINT names."""

import re
from pathlib import Path

from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.model_directory import (
    CONFIG_FILE,
    IMAGES_FILE,
    INDEX_FILE,
    WEIGHTS_FILE,
    read_config,
    read_weight_map,
)
from t2tp.optional_import import optional_import
from t2tp.problems.vocab.chat_template import TEMPLATE_FILE
from t2tp.problems.vocab.special_tokens import CONFIG_FILES, GENERATION_FILE, TOKENIZER_FILE

# An organization or user, a model, and a branch, tag or commit.
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")

_SMALL_FILES = (
    *(CONFIG_FILE, GENERATION_FILE, IMAGES_FILE, INDEX_FILE),
    *(TOKENIZER_FILE, *CONFIG_FILES, TEMPLATE_FILE),
    *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("tokenizer.model", "spiece.model"),
)


def local_directory(name: str) -> Path:
    """Returns the directory of a model; downloads the model into the Hub's cache if needed.

    The name is a directory, or a model's name on the Hub: `org/name` or `org/name@revision`.

    Raises:
      ConversionError: the model cannot be downloaded, or t2tp does not support its type.
    """
    path, match = Path(name).expanduser(), _NAME.fullmatch(name)
    if match is None or path.exists():
        return path
    return _download(match[1], match[2])


def _download(model: str, revision: str | None) -> Path:
    """Downloads config and tokenizer; and the weights, if t2tp supports the config's type."""
    directory = _snapshot(model, revision, _SMALL_FILES)
    read_config(directory)
    weights = [WEIGHTS_FILE]
    if (directory / INDEX_FILE).exists():
        weights = sorted(set(read_weight_map(directory).values()))
    # The directory's name is the commit, so all files come from the same commit.
    return _snapshot(model, directory.name, weights)


def _snapshot(model: str, revision: str | None, files: list[str] | tuple[str, ...]) -> Path:
    """Downloads files of a model.

    Errors do not quote the library's messages, so that no access token is ever printed.
    """
    with optional_import(
        f"there is no directory {model}, and to download it needs the library huggingface_hub:"
        " pip install huggingface_hub"
    ):
        import huggingface_hub
        from huggingface_hub import constants, errors
    where = f"{model} on {constants.ENDPOINT}"
    try:
        return Path(
            huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=list(files))
        )
    except Exception as error:
        login = "log in, with `hf auth login` or HF_TOKEN"
        kinds = {
            errors.GatedRepoError: f"{where} is gated: accept its conditions there and {login}",
            errors.RepositoryNotFoundError: f"there is no directory {model} and no {where}, or it"
            f" is private: {login}",
            errors.RevisionNotFoundError: f"{where} has no revision {revision}",
            errors.HFValidationError: f"{model} is neither a directory nor a name on the Hub",
        }
        known = next((text for kind, text in kinds.items() if isinstance(error, kind)), None)
        # The library may report a server's error as a missing local file. The server's answer is
        # then the error's cause.
        status = next((s for s in map(_status, (error, error.__cause__)) if s), None)
        if known is None and status is not None:
            known = f"{where} cannot be downloaded: the server answers {status}"
            known += f", access is denied: {login}" * (status == 403)
        if known is None and isinstance(error, OSError) and error.errno is not None:
            raise  # Such as a full disk.
        raise ConversionError(
            known
            or f"there is no directory {model}, and {where} cannot be downloaded and is not in the"
            f" Hub's cache ({type(error).__name__}): check the network, or name a directory"
        ) from None


def _status(error: BaseException | None) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
