"""A new run begins with the values of another one's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from t2tp.checkpoint import Checkpoint
from t2tp.mesh.variables import SlicedVariable, Variables
from t2tp.nearest import nearest
from t2tp.trainer import checkpointing
from t2tp.trainer.errors import UsageError
from t2tp.trainer.restoring import check_same_save

ARROW = "=>"


class WarmStartError(UsageError):
    """What is to be loaded is not there, or does not fit."""


@dataclass(frozen=True)
class WarmStart:
    """Where values come from, and how names there become names here.

    Attributes:
      path: see `checkpointing.find`.
      rules: (pattern, replacement) pairs, as of `re.sub`; applied one after another to each name.
    """

    path: str
    rules: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> WarmStart | None:
        """Reads `PATH` or `PATH:from=>to;from=>to`; None if there is no text.

        Raises:
          WarmStartError: a rule has no arrow, its pattern is no regular expression, or its
            replacement names a group that the pattern does not have.
        """
        if not text:
            return None
        path, _, rest = text.partition(":") if ARROW in text else (text, "", "")
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
                re.sub(f"{pattern}|", replacement, "")  # What matches nothing at all matches this.
            except (re.error, IndexError) as error:
                raise WarmStartError(
                    f"warm_start_from={text}: {replacement!r} cannot replace what {pattern!r}"
                    f" matches: {error}"
                ) from None
            rules.append((pattern, replacement))
        return cls(path, tuple(rules))

    def renamed(self, names: Sequence[str]) -> dict[str, str]:
        """What the names of a checkpoint are called here: name here -> name there.

        Raises:
          WarmStartError: a rule changes nothing, or two names become one.
        """
        here: dict[str, str] = {}
        used = [False] * len(self.rules)
        for there in names:
            name = there
            for number, (pattern, replacement) in enumerate(self.rules):
                name, changes = re.subn(pattern, replacement, name)
                used[number] |= changes > 0
            if name in here:
                raise WarmStartError(
                    f"warm_start_from: {here[name]} and {there} would both become {name}"
                )
            here[name] = there
        for (pattern, replacement), is_used in zip(self.rules, used, strict=True):
            if not is_used:
                raise WarmStartError(
                    f"warm_start_from: the rule {pattern}{ARROW}{replacement} matches no variable"
                    f" of {self.path}: {nearest(pattern, names, 'variables there')}"
                )
        return here


def warm_start(source: WarmStart, variables: Variables) -> str:
    """Gives trainable variables the values of the checkpoint's variables of their name and shape.

    Args:
      source: the checkpoint, and how its names change.
      variables: with their initial values.

    Returns:
      a table that says for each trainable variable what it was given, or why nothing.

    Raises:
      WarmStartError: no variable fits, or a rule changes nothing.
      FileNotFoundError: there is no such checkpoint.
      UnusableCheckpointError: it is damaged.
    """
    saved = checkpointing.find(source.path)
    check_same_save(saved, variables.cluster)
    there = source.renamed(sorted(saved.shapes()))
    trainable = [v for v in variables if v.spec.trainable]
    lines = {v.spec.name: _load(saved, v, there, variables) for v in trainable}
    loaded = [name for name, (is_loaded, _) in lines.items() if is_loaded]
    if not loaded:
        raise WarmStartError(_nothing_fits(saved, trainable, there, lines))
    width = max(map(len, lines))
    table = [f"  {name:<{width}}  {what}" for name, (_, what) in lines.items()]
    names = {v.spec.name for v in variables}
    unused = [name for name in _trained(saved) if name not in {there.get(each) for each in names}]
    others = len(variables) - len(trainable)
    return "\n".join(
        [
            f"warm start from {saved.path}, of step {saved.step}: {len(loaded)} of"
            f" {len(trainable)} trainable variables loaded",
            *table,
            *([f"  only in the checkpoint: {', '.join(unused)}"] if unused else []),
            *([f"  {others} variables of the optimizer begin anew"] if others else []),
        ]
    )


def _load(
    saved: Checkpoint, variable: SlicedVariable, there: Mapping[str, str], variables: Variables
) -> tuple[bool, str]:
    """Loads a variable if it fits; whether it did, and what to say of it."""
    name, shape = variable.spec.name, tuple(variable.spec.shape.to_integer_list)
    source = there.get(name)
    if source is None:
        return False, "initial value: not in the checkpoint"
    if saved.shapes()[source] != shape:
        return False, f"initial value: {saved.shapes()[source]} in the checkpoint, {shape} here"
    if not saved.dtypes()[source].is_floating:
        return False, f"initial value: {saved.dtypes()[source].name} in the checkpoint"
    checkpointing.load(saved, source, variable, variables.cluster.local_pnums)
    return True, "loaded" if source == name else f"loaded, renamed from {source}"


def _trained(saved: Checkpoint) -> list[str]:
    """The names there that a run would want to load."""
    return saved.metadata.get(checkpointing.TRAINABLE, [])


def _nothing_fits(
    saved: Checkpoint,
    trainable: Sequence[SlicedVariable],
    there: Mapping[str, str],
    lines: Mapping[str, tuple[bool, str]],
) -> str:
    """Says that nothing was loaded, with an example."""
    if not trainable:
        return "warm_start_from: the model has no trainable variables"
    name = trainable[0].spec.name
    why = lines[name][1].removeprefix("initial value: ")
    near = f"; {nearest(name, there, 'variables there')}" if name not in there else ""
    return (
        f"warm_start_from: none of the {len(trainable)} trainable variables is in {saved.path} with"
        f" its name and shape. {name}: {why}{near} (rules from{ARROW}to rename what is there)"
    )
