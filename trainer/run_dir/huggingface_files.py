"""The Hugging Face files that a converted run keeps: tokenizer, config and chat template.

A warm start from a converted run copies these files again, for decoding and exporting.
"""

import shutil
from os import PathLike
from pathlib import Path

from t2tp.huggingface.model_directory import CONFIG_FILE
from t2tp.problems.vocab.special_tokens import TOKENIZER_FILE
from t2tp.trainer import run_yaml
from t2tp.trainer.run_dir import run_files
from t2tp.typed_files import MAX_TOKENIZER_BYTES, file_inside, open_regular

_DIRECTORY = "huggingface"
_SUFFIXES = (".json", ".txt", ".model", ".jinja")
# End of the name of the file that lists the weight files.
_INDEX_SUFFIX = ".index.json"


def directory_in(output_dir: str | PathLike[str]) -> Path:
    """Returns the directory of a run's Hugging Face files, which need not exist."""
    return Path(output_dir) / _DIRECTORY


def tokenizer_directory(output_dir: str | PathLike[str]) -> Path | None:
    """Returns the directory of a converted run's tokenizer; None if the run has no tokenizer.

    Also None if the run was trained after its conversion, because the training data may have
    another vocabulary.
    """
    kept = directory_in(output_dir)
    flags = run_files.read_flags(output_dir)
    if flags.get("data_digest") or not (kept / TOKENIZER_FILE).is_file():
        return None
    return kept


def is_model_directory(path: str | PathLike[str]) -> bool:
    """Whether a path is a Hugging Face directory, and not a run's directory."""
    return (Path(path) / CONFIG_FILE).is_file() and not (Path(path) / run_yaml.FILE).exists()


def check_files(source: Path) -> list[Path]:
    """Returns the files to copy from a directory: all but weights.

    Raises:
      InvalidFileError: a file is a link that leaves the directory, or is too large.
      OSError: the directory cannot be read.
    """
    names = sorted(file.name for file in source.iterdir() if file.suffix in _SUFFIXES)
    files = [file_inside(source, name) for name in names if not name.endswith(_INDEX_SUFFIX)]
    files = [file for file in files if file.is_file()]
    for file in files:
        with open_regular(file, MAX_TOKENIZER_BYTES):
            pass
    return files


def copy_files(source: Path, target: Path) -> None:
    """Copies a directory's files, except its weights; creates the target if needed.

    Raises:
      InvalidFileError, OSError: see `check_files`; or the target cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    for file in check_files(source):
        shutil.copyfile(file, target / file.name)
