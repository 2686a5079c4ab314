"""Warm start: a new run starts from the values of another run's variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from absl import logging

from t2tp.checkpoint import Checkpoint
from t2tp.checkpoint.frozen_base import BASE, open_base
from t2tp.checkpoint.restore import check_same_save
from t2tp.checkpoint.variables import TRAINABLE, load, load_base
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.program.variables import SlicedVariable, Variables
from t2tp.suggestions import nearest
from t2tp.trainer.errors import UsageError
from t2tp.trainer.run_dir import huggingface_files, run_files
from t2tp.trainer.run_dir.find_checkpoint import find
from t2tp.trainer.run_dir.token_rows import TokenRows, rows_between, vocab_axis

ARROW = "=>"


class WarmStartError(UsageError):
    """A rule is invalid, or no variable of the checkpoint fits."""


@dataclass(frozen=True)
class WarmStart:
    """The source of a warm start, and rules that map its variable names to the model's names.

    Attributes:
      path: see `find_checkpoint.find`.
      rules: (pattern, replacement) pairs as of `re.sub`, applied in order to each name.
    """

    path: str
    rules: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> WarmStart | None:
        """Parses `PATH` or `PATH:from=>to;from=>to`; returns None for an empty text.

        Raises:
          WarmStartError: a rule has no arrow, its pattern is not a regular expression, or its
            replacement refers to a group that the pattern does not have.
        """
        if not text:
            return None
        path, rest = _split(text)
        rules = []
        for rule in filter(None, rest.split(";")):
            pattern, arrow, replacement = rule.partition(ARROW)
            if not arrow:
                raise WarmStartError(
                    f"warm_start_from={text}: {rule!r} is no rule of the form from{ARROW}to"
                )
            try:
                re.compile(pattern)
            except re.error as error:
                raise WarmStartError(
                    f"warm_start_from={text}: {pattern!r} is no regular expression: {error}"
                ) from None
            try:
                # The empty alternative matches in any case, so `re` checks the replacement.
                re.sub(f"{pattern}|", replacement, "")
            except (re.error, IndexError) as error:
                raise WarmStartError(
                    f"warm_start_from={text}: {replacement!r} cannot replace what {pattern!r}"
                    f" matches: {error}"
                ) from None
            rules.append((pattern, replacement))
        return cls(path, tuple(rules))

    def renamed(self, names: Sequence[str]) -> dict[str, str]:
        """Applies the rules: name in the model -> name in the checkpoint.

        Raises:
          WarmStartError: a rule matches no name, or two names become the same.
        """
        new_names: dict[str, str] = {}
        used = [False] * len(self.rules)
        for old_name in names:
            name = old_name
            for number, (pattern, replacement) in enumerate(self.rules):
                name, changes = re.subn(pattern, replacement, name)
                used[number] |= changes > 0
            if name in new_names:
                raise WarmStartError(
                    f"warm_start_from: {new_names[name]} and {old_name} would both become {name}"
                )
            new_names[name] = old_name
        for (pattern, replacement), is_used in zip(self.rules, used, strict=True):
            if not is_used:
                raise WarmStartError(
                    f"warm_start_from: the rule {pattern}{ARROW}{replacement} matches no variable"
                    f" of {self.path}: {nearest(pattern, names, 'variables there')}"
                )
        return new_names


def _split(text: str) -> tuple[str, str]:
    """Splits `PATH:RULES` at the colon behind a path that is there, else at the first colon."""
    if ARROW not in text or os.path.lexists(text):
        return text, ""
    pieces = text.split(":")
    paths = [":".join(pieces[:end]) for end in range(1, len(pieces))]
    path = next((each for each in paths if os.path.lexists(each)), pieces[0])
    return path, text[len(path) + 1 :]


def inherit_files(
    output_dir: str | os.PathLike[str], source: WarmStart, vocabulary: Vocabulary | None
) -> None:
    """Copies the Hugging Face files of the run that a run starts from.

    Does nothing if the run has files of its own, or another or an unknown vocabulary.

    Args:
      output_dir: directory of the run.
      source: where it starts from.
      vocabulary: the vocabulary of its data.

    Raises:
      OSError: a file cannot be read or written.
    """
    before = run_files.run_of(source.path)
    own = huggingface_files.directory_in(output_dir)
    if before is None or own.exists() or not huggingface_files.directory_in(before).is_dir():
        return
    rows, reason = rows_between(source.path, vocabulary)
    if reason:
        logging.warning(
            "the tokenizer of %s is not copied, as its vocabulary is unknown: %s", before, reason
        )
    elif rows is None or rows.are_same:
        huggingface_files.copy_files(huggingface_files.directory_in(before), own)


def warm_start(
    source: WarmStart, variables: Variables, vocabulary: Vocabulary | None = None
) -> str:
    """Loads trainable variables from tensors of the checkpoint with equal name and shape.

    If the run there has another vocabulary, the rows of embedding and logits follow the texts of
    their tokens; see `token_rows`. The frozen weights of a model with adapters must all be there,
    or in the base of the adapters that are there.

    Args:
      source: the checkpoint and the rules for its names.
      variables: variables with their initial values.
      vocabulary: the vocabulary of the run's data; None: there is no text.

    Returns:
      A summary: how many variables were loaded, and which were not, with the reason.

    Raises:
      WarmStartError: no variable fits, a rule matches no name, or a frozen table has the tokens of
        another vocabulary.
      BaseError: a frozen weight is neither in the checkpoint nor in its base.
      FileNotFoundError: there is no such checkpoint.
      UnusableCheckpointError: the checkpoint is damaged.
    """
    saved = find(source.path)
    check_same_save(saved, variables.cluster)
    sources = source.renamed(sorted(_names_in(saved)))
    rows, reason = rows_between(source.path, vocabulary)
    frozen = sum(v.spec.frozen for v in variables)
    tables = [v.spec.name for v in variables if v.spec.frozen and vocab_axis(v) is not None]
    if tables and rows is not None and rows.moves:
        raise WarmStartError(
            f"warm_start_from: {tables[0]} is frozen, and in {source.path} its rows are of another"
            f" vocabulary: train it with lora_also_trained={'|'.join(tables)}, or prepare the data"
            " with that vocabulary (--problem_options=vocabulary_from=...)"
        )
    if frozen:
        load_base(saved, variables, sources)
    trainable = [v for v in variables if v.spec.trainable]
    outcomes = {v.spec.name: _load(saved, v, sources, rows) for v in trainable}
    groups: dict[str, list[str]] = {}
    for outcome, text in outcomes.values():
        groups.setdefault(outcome, []).append(text)
    loaded = len(groups.pop(_LOADED, []))
    loaded += sum(len(groups.get(each, [])) for each in (_RENAMED, _BY_TEXT))
    if not loaded and not frozen:
        raise WarmStartError(_nothing_fits(saved, trainable, sources, outcomes))
    used = {sources.get(v.spec.name) for v in variables}
    groups["only in the checkpoint"] = [name for name in _trained(saved) if name not in used]
    others = len(variables) - len(trainable) - frozen
    base_path = variables.base["path"] if variables.base else ""
    elsewhere = f" from {base_path}" if base_path != str(saved.path.absolute()) else ""
    base = f"all {frozen} frozen weights{elsewhere}, and " if frozen else ""
    return "\n".join(
        [
            f"warm start from {saved.path} of step {saved.step}: loaded {base}{loaded} of"
            f" {len(trainable)} trainable variables",
            *(
                f"  {len(texts)} {group}: {_first(texts)}"
                for group, texts in groups.items()
                if texts
            ),
            *([f"  {rows.describe()}"] if rows is not None and _BY_TEXT in groups else []),
            *(
                [f"  rows are copied by number, as the vocabulary there is unknown: {reason}"]
                if reason
                else []
            ),
            *([f"  {others} optimizer variables start from scratch"] if others else []),
        ]
    )


# Outcomes of loading a variable.
_LOADED, _RENAMED, _BY_TEXT = "loaded", "renamed", "with the rows of the same texts"

# Max number of variables that a line names.
_NAMED = 3


def _first(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more


def _load(
    saved: Checkpoint, variable: SlicedVariable, sources: Mapping[str, str], rows: TokenRows | None
) -> tuple[str, str]:
    """Loads a variable if it fits; returns the outcome, and a text that names the variable."""
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
        return "of another shape, initialized", f"{name}, {there} in the checkpoint, {shape} here"
    dtype = saved.dtypes()[source]
    if not dtype.is_floating:
        return "of another type, initialized", f"{name}, {dtype.name} in the checkpoint"
    load(saved, source, variable)
    return (_LOADED, name) if source == name else (_RENAMED, f"{name} from {source}")


def _names_in(saved: Checkpoint) -> set[str]:
    """Returns the names in a checkpoint, and in the base of its adapters."""
    base = saved.metadata.get(BASE)
    if base is None:
        return set(saved.shapes())
    of_base = open_base(saved)
    return set(saved.shapes()) | set(base["names"]) | set(of_base.shapes() if of_base else ())


def _trained(saved: Checkpoint) -> list[str]:
    """Returns the names of the trainable variables of the checkpoint."""
    return saved.metadata.get(TRAINABLE, [])


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
