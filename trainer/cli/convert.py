"""`t2tp_convert`: makes a run of a directory of Hugging Face, or such a directory of a run."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from tqdm import tqdm

import t2tp.hparams
import t2tp.models  # noqa: F401  (they register themselves)
from t2tp import problems
from t2tp.hparam import HParams
from t2tp.huggingface import exporting
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.importing import import_tensors
from t2tp.huggingface.known_types import MODEL_TYPES, find_type
from t2tp.huggingface.model_directory import CONFIG_FILE, INDEX_FILE, ModelDirectory, read_json
from t2tp.huggingface.model_type import ModelType
from t2tp.huggingface.tensor_map import Variable, variables
from t2tp.scratch_directory import scratch_directory
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.run_dir import run_files
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory, find

# The directory of a run with what a directory has besides weights.
KEPT = "huggingface"
_KEPT_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_DTYPE_NAMES = ("dtype", "torch_dtype")


def run(invocation: Invocation) -> None:
    """Converts as the flags say, and prints the directory that was made.

    Raises:
      UsageError: the conversion is impossible; nothing was written.
    """
    flags = invocation.flags
    if bool(flags.from_hf) == bool(flags.to_hf):
        raise UsageError("give either --from_hf=DIR or --to_hf=DIR")
    convert = _to_run if flags.from_hf else _to_directory
    with as_usage_error(ValueError, LookupError, OSError):
        print(convert(flags))


def _to_run(flags: absl_flags.FlagValues) -> Path:
    """Makes a run of a directory."""
    if flags.checkpoint_path or flags.model_type:
        raise UsageError("--checkpoint_path and --model_type go with --to_hf only")
    source = ModelDirectory.from_path(Path(flags.from_hf).expanduser())
    model_type = source.model_type
    hparams = source.hparams()
    found = _variables(model_type, hparams)
    source.check_fits(found)
    source.check_tokenizer(hparams.vocab_size)
    problem = flags.problem or model_type.problem
    problems.find(problem, flags.problem_options)
    settings = {
        "model": model_type.model,
        "problem": problem,
        "problem_options": flags.problem_options,
        "hparams_set": "",
    }
    output_dir = Path(flags.output_dir).expanduser()
    with _made(output_dir) as partial:
        with _progress(found, "reading") as progress:
            directory = checkpoint_directory(str(partial))
            import_tensors(source, found, directory, flags.dtype or "", progress)
        _copy_small_files(source.path, partial / KEPT)
        run_files.write(str(partial), hparams, settings)
    return output_dir


def _to_directory(flags: absl_flags.FlagValues) -> Path:
    """Makes a directory of a run."""
    if flags.problem or flags.problem_options:
        raise UsageError("--problem and --problem_options go with --from_hf only")
    run_files.check_is_run(flags.output_dir)
    saved_run = run_files.read(flags.output_dir)
    if saved_run is None or saved_run.hparams is None:
        raise UsageError(f"{flags.output_dir} has lost its {run_files.HPARAMS_FILE}")
    hparams = saved_run.hparams
    kept = Path(flags.output_dir, KEPT)
    before = read_json(kept / CONFIG_FILE) if (kept / CONFIG_FILE).is_file() else {}
    if "vocab_size" in hparams and not hparams.vocab_size:
        raise UsageError(
            f"the run in {flags.output_dir} has no vocab_size among its hparams, so its vocabulary"
            " is that of its problem, which no directory of Hugging Face can say"
        )
    model_type = _type_of(flags.model_type or before.get("model_type"), saved_run.flags, hparams)
    config = _config(model_type, before, hparams)
    saved = find(flags.checkpoint_path or flags.output_dir)
    found = _variables(model_type, hparams)
    exporting.check_fits(saved, found)
    to_hf = Path(flags.to_hf).expanduser()
    with _made(to_hf) as partial:
        partial.mkdir(exist_ok=True)
        if kept.is_dir():
            _copy_small_files(kept, partial)
        with _progress(found, "writing") as progress:
            exporting.export_tensors(saved, found, partial, flags.dtype or "", progress)
        dtype = flags.dtype or saved.dtypes()[found[0].name].name
        named = {name: dtype for name in _DTYPE_NAMES if name in config} or {"dtype": dtype}
        text = json.dumps({**config, **named}, indent=2, sort_keys=True)
        (partial / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    return to_hf


def _variables(model_type: ModelType, hparams: HParams) -> list[Variable]:
    sizes = model_type.sizes(hparams)
    return variables(model_type.tensors(hparams), sizes, model_type.padded(hparams))


def _type_of(name: str | None, flags: dict[str, Any], hparams: HParams) -> ModelType:
    """Returns the type that is named, or the one whose architecture the run has.

    Raises:
      ConversionError: there is none.
    """
    model = flags.get("model")
    if name:
        model_type = find_type(name)
        if model_type.model != model:
            raise ConversionError(
                f"models of type {name} are runs of {model_type.model}, and this is one of {model}"
            )
        return model_type
    for model_type in MODEL_TYPES.values():
        if model_type.model == model:
            try:
                model_type.config(hparams)
            except ConversionError:
                continue
            return model_type
    raise ConversionError(
        f"no type of models has the architecture of this run of {model}; name one with"
        " --model_type to see in what it differs"
    )


def _config(model_type: ModelType, before: dict[str, Any], hparams: HParams) -> dict[str, Any]:
    """Returns the config: the one that the run was made of, if it still says what it is."""
    if before.get("model_type") != model_type.name:
        return model_type.config(hparams)
    return (
        {**before, **model_type.config(hparams)}
        if model_type.different(before, hparams)
        else before
    )


@contextmanager
def _made(directory: Path) -> Iterator[Path]:
    """Yields a path beside a directory; what is there at the end gets the directory's name.

    Raises:
      UsageError: the directory is there, with something in it.
    """
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise UsageError(f"{directory} exists: name a new directory")
    run_files.check_writable(str(directory), "the directory")
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(parent, f".{directory.name}.t2tp-convert-") as scratch:
        partial = scratch / "made"
        yield partial
        os.replace(partial, directory)


@contextmanager
def _progress(found: Sequence[Variable], what: str) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar, which is told how many values were read or written."""
    total = sum(math.prod(each.shape) for each in found)
    with tqdm(desc=what, total=total, unit=" values", unit_scale=True, disable=None) as bar:
        yield bar.update


def _copy_small_files(source: Path, target: Path) -> None:
    """Copies what a directory has besides weights: its config, tokenizer and chat template."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.suffix in _KEPT_SUFFIXES and file.name != INDEX_FILE and file.is_file():
            shutil.copyfile(file, target / file.name)
