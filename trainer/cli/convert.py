"""`t2tp_convert`: converts between a run and a Hugging Face checkpoint."""

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl import logging
from tqdm import tqdm

import t2tp.hparams
import t2tp.models  # noqa: F401  (they register themselves)
from t2tp import problems, registry
from t2tp.building.adapters import Adapters
from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.reading import RunWeights
from t2tp.hparam import HParams
from t2tp.huggingface import moving
from t2tp.huggingface.adapters import MergedCheckpoint, export_adapters
from t2tp.huggingface.errors import ConversionError
from t2tp.huggingface.hub import local_directory
from t2tp.huggingface.known_types import MODEL_TYPES, find_types
from t2tp.huggingface.model_directory import CONFIG_FILE, ModelDirectory
from t2tp.huggingface.model_type import ModelType
from t2tp.huggingface.moving import SOURCE, import_tensors
from t2tp.huggingface.tensor_map import Variable, variables
from t2tp.problems.vocab.special_tokens import read_if_there
from t2tp.scratch_directory import scratch_directory
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hparams_fit import completed, sets_of
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory, find
from t2tp.trainer.run_dir.token_rows import vocabulary_at


def run(flags: absl_flags.FlagValues) -> None:
    """Converts as the flags say, and prints the new directory."""
    if bool(flags.from_hf) == bool(flags.to_hf):
        raise UsageError("give either --from_hf=DIR or --to_hf=DIR")
    convert = _to_run if flags.from_hf else _to_directory
    with as_usage_error(ValueError, LookupError, OSError, ModuleNotFoundError):
        print(convert(flags))


def _to_run(flags: absl_flags.FlagValues) -> Path:
    """Converts a Hugging Face checkpoint to a run."""
    source = ModelDirectory.from_path(local_directory(flags.from_hf))
    model_type = source.model_type
    huggingface_files.check_files(source.path)
    hparams = source.hparams()
    found = source.variables(hparams)
    if "vocab_size" in hparams:
        source.check_tokenizer(hparams.vocab_size)
    problem = flags.problem or model_type.problem
    problems.find(problem, flags.problem_options)
    settings = {"model": model_type.model, "problem": problem, "hparams_set": ""}
    settings["problem_options"] = flags.problem_options
    output_dir = Path(flags.output_dir).expanduser()
    with _made(output_dir) as partial:
        with _progress(found, "reading") as progress:
            directory = checkpoint_directory(str(partial))
            origin = "" if os.path.isdir(flags.from_hf) else flags.from_hf
            import_tensors(source, found, directory, flags.dtype or "", progress, origin)
        huggingface_files.copy_files(source.path, huggingface_files.directory_in(partial))
        run_files.write(str(partial), hparams, settings)
    return output_dir


def _to_directory(flags: absl_flags.FlagValues) -> Path:
    """Converts a run to a Hugging Face checkpoint."""
    most_bytes = moving.bytes_of(flags.max_shard_size or str(moving.MOST_BYTES))
    saved_run = run_files.read_run(flags.output_dir)
    hparams = completed(saved_run.hparams, saved_run.flags.get("model") or "")
    kept = huggingface_files.directory_in(flags.output_dir)
    before = read_if_there(kept / CONFIG_FILE)
    adapters = Adapters.from_hparams(hparams)
    if flags.merge_lora and adapters is None:
        raise UsageError(f"--merge_lora: the run in {flags.output_dir} has no adapters")
    dtype = flags.dtype or ""
    saved = find(flags.checkpoint_path or flags.output_dir)
    if flags.weights == "averages":
        saved = RunWeights(saved.path)
    tuned = saved
    if adapters is not None:
        saved = MergedCheckpoint(tuned, adapters, dtype)
    name = flags.model_type or before.get("model_type")
    model_type = _type_of(name, saved_run.flags, hparams, saved)
    config = _config(model_type, before, hparams, flags.output_dir)
    found = _variables(model_type, hparams)
    moving.check_fits(saved, found)
    to_hf = Path(flags.to_hf).expanduser()
    with _made(to_hf) as partial:
        if adapters is not None and not flags.merge_lora:
            origin = {"_name_or_path": saved.metadata.get(SOURCE)}
            export_adapters(tuned, found, adapters, config | origin, partial, dtype)
            return to_hf
        with _progress(found, "writing") as progress:
            moving.export_tensors(saved, found, partial, dtype, progress, most_bytes)
        if kept.is_dir():
            huggingface_files.copy_files(kept, partial)
        dtype = dtype or saved.dtypes()[found[0].name].name
        names = [name for name in ("dtype", "torch_dtype") if name in config] or ["dtype"]
        text = json.dumps({**config, **dict.fromkeys(names, dtype)}, indent=2, sort_keys=True)
        (partial / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    return to_hf


def _variables(model_type: ModelType, hparams: HParams) -> list[Variable]:
    return variables(model_type.tensors(hparams), model_type.sizes(hparams))


def _type_of(
    name: str | None, flags: dict[str, Any], hparams: HParams, saved: Checkpoint
) -> ModelType:
    """Returns the named model type; without a name, the type with the run's architecture.

    Hparams that the problem determines, such as the number of classes, are set from the checkpoint.
    """
    model = flags.get("model")
    candidates = [
        each for each in (find_types(name) if name else MODEL_TYPES) if each.model == model
    ]
    if name and not candidates:
        (named, *_) = find_types(name)
        raise ConversionError(
            f"models of type {name} are converted from runs of {named.model}, and this is a run of"
            f" {model}"
        )
    shapes = saved.shapes()
    for model_type in candidates:
        try:
            complete = model_type.completed(hparams, shapes)
            if not name:
                model_type.config(complete)
            has_all = all(each.name in shapes for each in _variables(model_type, complete))
        except (ConversionError, KeyError):
            continue
        if has_all:
            for each, value in complete.values().items():
                hparams.set(each, value)
            return model_type
    if name:
        with contextlib.suppress(ConversionError):
            other = _type_of(None, flags, hparams, saved)
            raise UsageError(
                f"the run has the architecture of models of type {other.name}, not of type {name}"
            )
        return candidates[0]  # `_config` names the difference.
    raise ConversionError(f"no Hugging Face type has {_obstacle(model, hparams, candidates)}")


def _obstacle(model: str | None, hparams: HParams, candidates: Sequence[ModelType]) -> str:
    """Names the hparams that the nearest type lacks, and sets without an obstacle."""
    if not candidates:
        return f"the architecture of {model}"
    found = {each.name: each.obstacles(hparams) for each in candidates}
    # A type without the activation is compared no further; see `obstacles`.
    nearest = min(found, key=lambda name: (len(found[name]), "mlp" in found[name]))
    hparams_of_run = ", ".join(f"{name}={value}" for name, value in found[nearest].items())
    exportable = (
        name
        for name in sets_of(model)
        if not all(each.obstacles(registry.hparams(name)) for each in candidates)
    )
    sets = ", ".join(itertools.islice(exportable, 3))
    advice = f"; sets of {model} that can be exported are {sets}" if sets else ""
    return f"{hparams_of_run} (the nearest type is {nearest}){advice}"


def _config(
    model_type: ModelType, before: dict[str, Any], hparams: HParams, run: str
) -> dict[str, Any]:
    """Returns the contents of config.json.

    `before` is the config of the checkpoint that the run was converted from. If this checkpoint
    has the same `model_type`, its config is updated, else a new config is created.
    """
    architectures = before.get("architectures") or [model_type.architecture]
    if before.get("model_type") != model_type.name or architectures != [model_type.architecture]:
        config = model_type.config(hparams)
        return config | _end_tokens(config, run)
    return model_type.changed(before, hparams)


def _end_tokens(config: dict[str, Any], run: str) -> dict[str, Any]:
    """Returns the entry with the tokens that end a text, if a new decoder's config.json lacks it.

    Without this entry, `transformers` ends texts at its default for the type, or never.
    """
    if "bos_token_id" not in config or "eos_token_id" in config:
        return {}
    try:
        vocabulary = vocabulary_at(run)
    except (ValueError, LookupError, OSError) as error:
        logging.warning("config.json names no eos_token_id: the data of %s: %s", run, error)
        return {}
    if vocabulary is None:
        return {}
    ends = list(vocabulary.end_ids)
    return {"eos_token_id": ends[0] if len(ends) == 1 else ends}


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[Path]:
    """Yields a temporary directory, and renames it to `directory` at the end."""
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise UsageError(f"{directory} exists: name a new directory")
    run_files.check_writable(str(directory), "the directory")
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(parent, f".{directory.name}.t2tp-convert-") as scratch:
        partial = scratch / "made"
        partial.mkdir()
        yield partial
        os.replace(partial, directory)


@contextlib.contextmanager
def _progress(found: Sequence[Variable], what: str) -> Iterator[Callable[[int], object]]:
    """Yields a function that advances a progress bar by a number of values."""
    total = sum(math.prod(each.shape) for each in found)
    # The bar is hidden without a terminal.
    with tqdm(desc=what, total=total, unit=" values", unit_scale=True, disable=None) as bar:
        yield bar.update
