"""Warm start: a new run starts from the values of another run's variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
from absl import logging

from t2tp.checkpoint import Checkpoint, Slice
from t2tp.checkpoint.frozen_base import open_base
from t2tp.checkpoint.reading import BASE, TRAINABLE, RunWeights
from t2tp.checkpoint.restore import check_same_save
from t2tp.checkpoint.variables import assign_slices, load, load_base
from t2tp.program.variables import SlicedVariable, Variables
from t2tp.suggestions import first_few, nearest
from t2tp.trainer.errors import UsageError
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.token_rows import MatchedRows, TokenRows, vocab_axis

ARROW = "=>"


class WarmStartError(UsageError):
    """A rule is invalid, or no variable of the checkpoint fits."""


@dataclass(frozen=True)
class WarmStart:
    """The checkpoint of a warm start, and rules that map its variable names to the model's names.

    Attributes:
      path: the run or checkpoint to start from; see `find_checkpoint.find`.
      rules: (pattern, replacement) pairs for `re.sub`, applied in order to each name.
    """

    path: str
    rules: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> WarmStart | None:
        """Parses `PATH` or `PATH:from=>to;from=>to`; returns None for an empty text.

        Raises:
          WarmStartError: a rule has no arrow, or an invalid pattern or replacement.
        """
        if not text:
            return None
        path, rest = _split(text)
        rules = []
        for rule in filter(None, rest.split(";")):
            pattern, arrow, replacement = rule.partition(ARROW)
            if not arrow:
                raise WarmStartError(
                    f"warm_start_from={text}: the rule {rule!r} has not the form from{ARROW}to"
                )
            try:
                # The empty alternative matches any text, so that `re` evaluates the replacement.
                re.sub(f"{pattern}|", replacement, "")
            except (re.error, IndexError) as error:
                raise WarmStartError(
                    f"warm_start_from={text}: the rule {rule!r} has an invalid pattern or"
                    f" replacement: {error}"
                ) from None
            rules.append((pattern, replacement))
        return cls(path, tuple(rules))

    def renamed(self, names: Sequence[str]) -> dict[str, str]:
        """Applies the rules to the checkpoint's names; returns model name -> checkpoint name.

        Raises:
          WarmStartError: a rule matches no name, or two names become the same.
        """
        renamed = list(names)
        for pattern, replacement in self.rules:
            changes = [re.subn(pattern, replacement, name) for name in renamed]
            if not any(count for _, count in changes):
                raise WarmStartError(
                    f"warm_start_from: the rule {pattern}{ARROW}{replacement} matches no variable"
                    f" of {self.path}: {nearest(pattern, names, 'variables there')}"
                )
            renamed = [name for name, _ in changes]
        new_names: dict[str, str] = {}
        for name, old_name in zip(renamed, names, strict=True):
            if name in new_names:
                raise WarmStartError(
                    f"warm_start_from: {new_names[name]} and {old_name} would both become {name}"
                )
            new_names[name] = old_name
        return new_names


def _split(text: str) -> tuple[str, str]:
    """Splits `PATH:RULES` at the colon after an existing path, or else at the first colon."""
    if ARROW not in text or os.path.lexists(text):
        return text, ""
    pieces = text.split(":")
    paths = [":".join(pieces[:end]) for end in range(1, len(pieces))]
    path = next((each for each in paths if os.path.lexists(each)), pieces[0])
    return path, text[len(path) + 1 :]


def inherit_files(
    output_dir: str | os.PathLike[str], source: WarmStart, matched: MatchedRows
) -> None:
    """Copies Hugging Face files from the warm start's run to the new run.

    Does nothing if the new run already has such files, or if the vocabularies differ or are
    unknown. `matched` is the result of `rows_between`.

    Raises:
      OSError: a file cannot be read or written.
    """
    before = run_files.run_of(source.path)
    own = huggingface_files.directory_in(output_dir)
    if before is None or own.exists() or not huggingface_files.directory_in(before).is_dir():
        return
    rows, reason = matched
    if reason:
        logging.warning(
            "the tokenizer of %s is not copied, as its vocabulary is unknown: %s", before, reason
        )
    elif rows is None or rows.are_same:
        huggingface_files.copy_files(huggingface_files.directory_in(before), own)


def warm_start(
    source: WarmStart,
    variables: Variables,
    matched: MatchedRows = (None, ""),
    with_optimizer: bool = False,
    weights: str = "averages",
) -> tuple[str, int]:
    """Loads trainable variables from tensors of the checkpoint with equal name and shape.

    If the source run has another vocabulary, rows of the embedding and the logits are matched by
    the texts of their tokens; see `token_rows`. A model with adapters needs all its frozen weights:
    they are loaded from the checkpoint, or from the base of the checkpoint's own adapters.

    `variables` have their initial values, and `matched` is the result of `rows_between`. With
    `with_optimizer`, the optimizer's variables and the step are loaded too, and with them the
    weights of the last step. Otherwise `weights` says which weights are loaded; see
    `t2tp.choices.WEIGHTS`.

    Returns:
      (summary, step). The summary counts the loaded variables, and says why the other variables
      were not loaded. The step is the step to continue from; with a fresh optimizer it is 0.

    Raises:
      WarmStartError: no variable fits, a rule matches no name, the tokens of a frozen table have
        other ids in the new vocabulary, or the checkpoint was trained with another optimizer.
      BaseError: a frozen weight is neither in the checkpoint nor in its base.
      FileNotFoundError: there is no such checkpoint.
      UnusableCheckpointError: the checkpoint is damaged.
    """
    saved = find(source.path)
    if weights == "averages" and not with_optimizer:
        saved = RunWeights(saved.path)
    check_same_save(saved, variables.cluster)
    sources = source.renamed(sorted(_names_in(saved)))
    rows, _ = matched
    frozen = sum(v.spec.frozen for v in variables)
    tables = [v.spec.name for v in variables if v.spec.frozen and vocab_axis(v) is not None]
    there = saved.shapes()
    is_resized = any(
        variables[name].spec.shape.to_integer_list != [*there[sources[name]]]
        for name in tables
        if sources.get(name) in there
    )
    if tables and rows is not None and (rows.moves or is_resized):
        raise WarmStartError(
            f"warm_start_from: {tables[0]} is frozen, and in {source.path} its rows are of another"
            f" vocabulary: train it with lora_also_trained={'|'.join(tables)}, or prepare the data"
            " with that vocabulary (--problem_options=vocabulary_from=...)"
        )
    if frozen:
        load_base(saved, variables, sources)
    trainable = [v for v in variables if v.spec.trainable]
    outcomes = {v.spec.name: _load(saved, v, sources, rows) for v in trainable}
    if not frozen and not any(outcome in _FITS for outcome, _ in outcomes.values()):
        raise WarmStartError(_nothing_fits(saved, trainable, sources, outcomes))
    lines = _summary(saved, variables, sources, outcomes, matched)
    others = [v for v in variables if not v.spec.trainable and not v.spec.frozen]
    fresh = [v.spec.name for v in others]
    if with_optimizer:
        # New rows of a table get the mean of the loaded rows. New rows of the table's optimizer
        # slots get the mean of the slots' loaded rows. If they began at zero, the first updates
        # would be 3 times too large, because Adam's bias correction has ended at the saved step.
        slots = _slot_sources(saved, fresh, sources)
        fresh = [v.spec.name for v in others if _load(saved, v, slots, rows)[0] not in _FITS]
        if fresh and len(fresh) == len(others):
            raise WarmStartError(
                f"warm_start_optimizer: {saved.path} has no {first_few(fresh)}: train with the"
                " optimizer and its hparams of that run, or without --warm_start_optimizer"
            )
        lines.append(f"  the step and {len(others) - len(fresh)} optimizer variables loaded")
    if fresh:
        lines.append(f"  {len(fresh)} optimizer variables start from scratch")
    return "\n".join(lines), saved.step if with_optimizer else 0


def _summary(
    saved: Checkpoint,
    variables: Variables,
    sources: Mapping[str, str],
    outcomes: Mapping[str, tuple[str, str]],
    matched: MatchedRows,
) -> list[str]:
    """Returns lines about the weights that were loaded and those that were not."""
    rows, reason = matched
    groups: dict[str, list[str]] = {}
    for outcome, text in outcomes.values():
        groups.setdefault(outcome, []).append(text)
    loaded = sum(len(groups.get(each, [])) for each in _FITS)
    groups.pop(_LOADED, None)
    used = {sources.get(v.spec.name) for v in variables}
    there = saved.metadata.get(TRAINABLE, [])
    groups["only in the checkpoint"] = [name for name in there if name not in used]
    base_path = variables.base["path"] if variables.base else ""
    elsewhere = f" from {base_path}" if base_path != str(saved.path.absolute()) else ""
    frozen = sum(v.spec.frozen for v in variables)
    base = f"all {frozen} frozen weights{elsewhere}, and " if frozen else ""
    lines = [
        f"warm start from {saved.path} of step {saved.step}: loaded {base}{loaded} of"
        f" {len(outcomes)} trainable variables",
        *(
            f"  {len(texts)} {group}: {first_few(texts)}"
            for group, texts in groups.items()
            if texts
        ),
    ]
    if rows is not None and _BY_TEXT in groups:
        lines.append(f"  {rows.describe()}")
    if reason:
        lines.append(f"  rows are copied by number, as the vocabulary there is unknown: {reason}")
    return lines


def _slot_sources(
    saved: Checkpoint, slots: Sequence[str], sources: Mapping[str, str]
) -> dict[str, str]:
    """Maps the names of the optimizer's variables to their names in the checkpoint.

    Variables that the checkpoint lacks are omitted. If a rule renames a variable, the variable's
    slots `<variable>/<slot>` are renamed, too.
    """
    found = {}
    for name in slots:
        owner, _, slot = name.rpartition("/")
        found[name] = f"{sources[owner]}/{slot}" if owner in sources else name
    return {name: source for name, source in found.items() if source in saved.shapes()}


# Outcomes of loading a variable.
_LOADED, _RENAMED, _BY_TEXT = "loaded", "renamed", "with the rows of the same texts"
_CUT, _LONGER = "cut to fewer positions", "with further positions, initialized"
_FITS = (_LOADED, _RENAMED, _BY_TEXT, _CUT, _LONGER)


def _load(
    saved: Checkpoint, variable: SlicedVariable, sources: Mapping[str, str], rows: TokenRows | None
) -> tuple[str, str]:
    """Loads a variable if it fits; returns the outcome and a text about the variable."""
    name, shape = variable.spec.name, tuple(variable.spec.shape.to_integer_list)
    source = sources.get(name)
    if source is None:
        return "not in the checkpoint, initialized", name
    if source not in saved.shapes():
        return "frozen in the checkpoint, initialized", name
    there = saved.shapes()[source]
    is_same = there == shape and (rows is None or rows.are_same)
    if not is_same and rows is not None and rows.fits(there, variable):
        rows.load(saved, source, variable)
        return _BY_TEXT, name
    if there != shape:
        text = f"{name}, {there} in the checkpoint, {shape} here"
        if variable.spec.shape.dimension_names[:1] != ["max_length"] or there[1:] != shape[1:]:
            return "of another shape, initialized", text
        _load_common_rows(saved, source, variable)
        return _CUT if there > shape else _LONGER, text
    dtype = saved.dtypes()[source]
    if not dtype.is_floating and dtype != variable.spec.dtype:
        return "of another type, initialized", f"{name}, {dtype.name} in the checkpoint"
    load(saved, source, variable)
    return (_LOADED, name) if source == name else (_RENAMED, f"{name} from {source}")


def _load_common_rows(saved: Checkpoint, name: str, variable: SlicedVariable) -> None:
    """Loads the rows that the saved table has; further rows keep their initial values."""
    shape, dtype, values = saved.shapes()[name], saved.dtypes()[name], {}
    for begin, pnum in variable.local_owners().items():
        initial = tf.convert_to_tensor(variable.value_of(pnum))
        size = (min(len(initial), shape[0] - begin[0]), *initial.shape[1:])
        values[begin] = initial
        if size[0] > 0:
            (value,) = saved.read([Slice(name, shape, begin, size, dtype)])
            values[begin] = tf.concat([tf.cast(value, initial.dtype), initial[size[0] :]], 0)
    assign_slices(variable, values)


def _names_in(saved: Checkpoint) -> set[str]:
    """Returns the names in a checkpoint and in the base of its adapters."""
    base = saved.metadata.get(BASE)
    if base is None:
        return set(saved.shapes())
    of_base = open_base(saved)
    return set(saved.shapes()) | set(base["names"]) | set(of_base.shapes() if of_base else ())


def _nothing_fits(
    saved: Checkpoint,
    trainable: Sequence[SlicedVariable],
    sources: Mapping[str, str],
    outcomes: Mapping[str, tuple[str, str]],
) -> str:
    """Returns the error that no variable fits, with an example."""
    if not trainable:
        return "warm_start_from: the model has no trainable variables"
    name = trainable[0].spec.name
    outcome, text = outcomes[name]
    hint = f"; {nearest(name, sources, 'variables there')}" if name not in sources else ""
    return (
        f"warm_start_from: none of the {len(trainable)} trainable variables is in {saved.path} with"
        f" its name and shape. {outcome.removesuffix(', initialized').capitalize()}: {text}{hint}"
        f" (rules from{ARROW}to rename variables of the checkpoint)"
    )
