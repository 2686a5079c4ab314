"""`t2tp_bleu`: BLEU of a translation, or of each in a folder, by sacrebleu."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from t2tp.quiet import quiet_import
from t2tp.trainer import console, flag_groups
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.flag_groups import Group
from t2tp.trainer.t2tp_trainer import WRONG_USAGE

_INTRO = """
BLEU (sacrebleu, 0 to 100) of a text against a reference, line by line, cased and uncased:

  t2tp_bleu --translation=news.en.decoded --reference=news.en
  t2tp_bleu --translations_dir=decoded --reference=news.en

The second scores each file named NAME-STEP of a folder, and writes the scores to TensorBoard's
events.
"""

_TAGS = {"cased": "BLEU_cased", "uncased": "BLEU_uncased"}
_STEP = re.compile(r".*-(\d+)")


class _Translation(NamedTuple):
    """A file, and the training step behind it."""

    step: int
    path: Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line, with the program's name first; by default this process's.

    Returns:
      the exit code.
    """
    try:
        given = flag_groups.parse(GROUPS, sys.argv if arguments is None else arguments)
        if flag_groups.answered(given, _INTRO, GROUPS):
            return 0
        console.use_plain_lines()
        with as_usage_error(OSError, ModuleNotFoundError, UnicodeDecodeError):
            _run(given)
    except UsageError as error:
        print(f"t2tp_bleu: {error}", file=sys.stderr)
        return WRONG_USAGE
    return 0


def bleu_scores(
    translation: Sequence[str], reference: Sequence[str], variants: Sequence[str]
) -> dict[str, float]:
    """BLEU of a text, 0 to 100.

    Args:
      translation: its lines.
      reference: as many lines.
      variants: of "cased" and "uncased".

    Returns:
      variant -> score.

    Raises:
      ModuleNotFoundError: sacrebleu is not installed; says how to install it.
    """
    from t2tp.problems.text_scores import bleu

    def prepared(lines: Sequence[str], variant: str) -> list[str]:
        return [line.lower() if variant == "uncased" else line for line in lines]

    return {each: bleu(prepared(translation, each), prepared(reference, each)) for each in variants}


def _run(given: flags.FlagValues) -> None:
    if not given.reference or bool(given.translation) == bool(given.translations_dir):
        raise UsageError("give --reference, and either --translation or --translations_dir")
    reference = _lines(given.reference)
    variants = [name for name in _TAGS if given.bleu_variant in (name, "both")]
    if given.source:
        _translated(given.source, given.reference)
    if given.translation:
        scores = bleu_scores(_translated(given.translation, given.reference), reference, variants)
        for variant, score in scores.items():
            print(f"{_TAGS[variant]} = {score:6.2f}")
        return
    found = _translations(given.translations_dir, given.min_steps)
    by_step = {}
    for step, path in found:
        scores = bleu_scores(_translated(str(path), given.reference), reference, variants)
        by_step[step] = {_TAGS[v] + given.tag_suffix: score for v, score in scores.items()}
        print(f"step {step}  " + "  ".join(f"{k} = {v:6.2f}" for k, v in by_step[step].items()))
    _write_events(given.event_dir or given.translations_dir, by_step)


def _translations(folder: str, min_steps: int) -> list[_Translation]:
    """The files named NAME-STEP, in the order of the steps."""
    if not Path(folder).is_dir():
        raise UsageError(f"--translations_dir={folder}: there is no such folder")
    found = [
        _Translation(int(match[1]), path)
        for path in Path(folder).iterdir()
        if path.is_file() and (match := _STEP.fullmatch(path.name))
    ]
    later = sorted(each for each in found if each.step >= min_steps)
    if not later:
        raise UsageError(f"{folder} holds no file named NAME-STEP of step {min_steps} or later")
    steps = [each.step for each in later]
    twice = next((each for each in later if steps.count(each.step) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{folder} holds two translations of step {twice.step}: {twice.path} is one"
        )
    return later


def _translated(path: str, reference_path: str) -> list[str]:
    """The lines of a translation, or of what was translated, as many as the reference has."""
    lines, wanted = _lines(path), len(_lines(reference_path))
    if len(lines) != wanted:
        raise UsageError(
            f"{path} has {len(lines)} lines, and {reference_path} has {wanted}: a line of one is"
            " compared with that line of the other"
        )
    return lines


def _lines(path: str) -> list[str]:
    # Not splitlines: it would also cut at characters that are part of a text.
    text = Path(path).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def _write_events(folder: str, by_step: dict[int, dict[str, float]]) -> None:
    with quiet_import():
        from t2tp.trainer.summaries import SummaryWriter
    summaries = SummaryWriter(folder)
    for step, scores in by_step.items():
        summaries.write(step, scores)
    summaries.close()


def _define(ours: flags.FlagValues) -> None:
    flags.DEFINE_string("translation", None, "File of translated lines.", flag_values=ours)
    flags.DEFINE_string(
        "reference", None, "File of the lines that they should be.", flag_values=ours
    )
    flags.DEFINE_string(
        "source",
        None,
        "File of the lines that were translated; they must be as many.",
        flag_values=ours,
    )
    flags.DEFINE_string(
        "translations_dir", None, "Folder of files named NAME-STEP.", flag_values=ours
    )
    flags.DEFINE_string(
        "event_dir",
        None,
        "Folder for the events; by default, --translations_dir.",
        flag_values=ours,
    )
    flags.DEFINE_enum(
        "bleu_variant",
        "both",
        ["both", *_TAGS],
        "Whether upper and lower case count: cased, uncased or both.",
        flag_values=ours,
    )
    flags.DEFINE_string("tag_suffix", "", "What to add to the names of scores.", flag_values=ours)
    flags.DEFINE_integer("min_steps", 0, "Leave out translations of fewer steps.", flag_values=ours)


GROUPS = (Group("What to score", _define),)

if __name__ == "__main__":
    sys.exit(main())
