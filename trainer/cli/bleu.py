"""`t2tp_bleu`: sacrebleu's BLEU of a translation, or of each translation in a directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags as absl_flags

from t2tp.quiet import quiet_import
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import UsageError, as_usage_error

_TAGS = {"cased": "BLEU_cased", "uncased": "BLEU_uncased"}
_STEP = re.compile(r".*-(\d+)")


class _Translation(NamedTuple):
    """A file and the training step of its model."""

    step: int
    path: Path


def run(invocation: Invocation) -> None:
    """Prints the scores of the files that the flags name.

    Raises:
      UsageError: a file cannot be read, or its length differs from the reference's.
    """
    with as_usage_error(OSError, ModuleNotFoundError, UnicodeDecodeError):
        _score(invocation.flags)


def bleu_scores(
    translation: Sequence[str], reference: Sequence[str], variants: Sequence[str]
) -> dict[str, float]:
    """Computes the BLEU of a text, 0 to 100.

    Args:
      translation: its lines.
      reference: one line per line of the translation.
      variants: of "cased" and "uncased".

    Returns:
      variant -> score.

    Raises:
      ModuleNotFoundError: sacrebleu is not installed; the message names the command to install it.
    """
    from t2tp.problems.text_scores import bleu

    def prepared(lines: Sequence[str], variant: str) -> list[str]:
        return [line.lower() if variant == "uncased" else line for line in lines]

    return {each: bleu(prepared(translation, each), prepared(reference, each)) for each in variants}


def _score(flags: absl_flags.FlagValues) -> None:
    if not flags.reference or bool(flags.translation) == bool(flags.translations_dir):
        raise UsageError("give --reference, and either --translation or --translations_dir")
    reference = _lines(flags.reference)
    variants = [name for name in _TAGS if flags.bleu_variant in (name, "both")]
    if flags.source:
        _translated(flags.source, flags.reference)
    if flags.translation:
        scores = bleu_scores(_translated(flags.translation, flags.reference), reference, variants)
        for variant, score in scores.items():
            print(f"{_TAGS[variant]} = {score:6.2f}")
        return
    translations = _translations(flags.translations_dir, flags.min_steps)
    by_step = {}
    for step, path in translations:
        scores = bleu_scores(_translated(str(path), flags.reference), reference, variants)
        by_step[step] = {_TAGS[v] + flags.tag_suffix: score for v, score in scores.items()}
        print(f"step {step}  " + "  ".join(f"{k} = {v:6.2f}" for k, v in by_step[step].items()))
    _write_events(flags.event_dir or flags.translations_dir, by_step)


def _translations(directory: str, min_steps: int) -> list[_Translation]:
    """Lists the files named NAME-STEP, by step."""
    if not Path(directory).is_dir():
        raise UsageError(f"--translations_dir={directory}: there is no such directory")
    translations = [
        _Translation(int(match[1]), path)
        for path in Path(directory).iterdir()
        if path.is_file() and (match := _STEP.fullmatch(path.name))
    ]
    selected = sorted(each for each in translations if each.step >= min_steps)
    if not selected:
        raise UsageError(f"{directory} holds no file named NAME-STEP of step {min_steps} or later")
    steps = [each.step for each in selected]
    duplicate = next((each for each in selected if steps.count(each.step) > 1), None)
    if duplicate is not None:
        raise UsageError(
            f"{directory} holds two translations of step {duplicate.step}: {duplicate.path} is one"
        )
    return selected


def _translated(path: str, reference_path: str) -> list[str]:
    """Reads a translation or its source, which must have as many lines as the reference."""
    lines, num_reference_lines = _lines(path), len(_lines(reference_path))
    if len(lines) != num_reference_lines:
        raise UsageError(
            f"{path} has {len(lines)} lines, and {reference_path} has {num_reference_lines}: a line"
            " of one is compared with that line of the other"
        )
    return lines


def _lines(path: str) -> list[str]:
    # Not splitlines, which also splits at characters within a line, such as U+2028.
    text = Path(path).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def _write_events(directory: str, by_step: dict[int, dict[str, float]]) -> None:
    with quiet_import():  # Scores of one file need no TensorFlow.
        from t2tp.trainer.hooks.summaries import SummaryWriter
    summaries = SummaryWriter(directory)
    for step, scores in by_step.items():
        summaries.write(step, scores)
    summaries.close()
