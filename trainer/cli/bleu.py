"""`t2tp_bleu`: sacrebleu's BLEU of a translation, or of each translation in a directory."""

import re
from pathlib import Path

from absl import flags as absl_flags

from t2tp.problems.text_scores import bleu
from t2tp.quiet import quiet_import
from t2tp.trainer.cli.run_program import Invocation
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.local_paths import read_lines

_STEP = re.compile(r".*-(\d+)")


def run(invocation: Invocation) -> None:
    """Prints the scores of the files that the flags name."""
    flags = invocation.flags
    if not flags.reference or not (flags.translation or flags.translations_dir):
        raise UsageError("give --reference, and either --translation or --translations_dir")
    with as_usage_error(OSError, ModuleNotFoundError, ValueError):
        if flags.source:
            _parallel_lines(flags.source, flags.reference)
        if flags.translation:
            for name, score in _scores(flags.translation, flags).items():
                print(f"{name} = {score:6.2f}")
            return
        by_step = {}
        for step, path in _translations(flags.translations_dir, flags.min_steps):
            by_step[step] = _scores(path, flags)
            print(f"step {step}  " + "  ".join(f"{k} = {v:6.2f}" for k, v in by_step[step].items()))
        _write_events(flags.event_dir or flags.translations_dir, by_step)


def _scores(path: str | Path, flags: absl_flags.FlagValues) -> dict[str, float]:
    """Computes the BLEU scores of a file, 0 to 100, by name."""
    lines, references = _parallel_lines(path, flags.reference)
    scores = {}
    if flags.bleu_variant != "uncased":
        scores[f"BLEU_cased{flags.tag_suffix}"] = bleu(lines, references)
    if flags.bleu_variant != "cased":
        lowered = ([line.lower() for line in text] for text in (lines, references))
        scores[f"BLEU_uncased{flags.tag_suffix}"] = bleu(*lowered)
    return scores


def _parallel_lines(path: str | Path, reference_path: str) -> tuple[list[str], list[str]]:
    """Reads a file and the reference, and checks that they have equally many lines."""
    lines, references = read_lines(path), read_lines(reference_path)
    if len(lines) != len(references) or not references:
        raise UsageError(
            f"{path} has {len(lines)} lines, and {reference_path} has {len(references)}: expected"
            " one reference per line, and at least one"
        )
    return lines, references


def _translations(directory: str, min_steps: int) -> list[tuple[int, Path]]:
    """Lists (step, file) for the files named NAME-STEP, sorted by step."""
    if not Path(directory).is_dir():
        raise UsageError(f"--translations_dir={directory}: there is no such directory")
    translations: dict[int, Path] = {}
    for path in sorted(Path(directory).iterdir()):
        match = _STEP.fullmatch(path.name)
        if not match or not path.is_file() or int(match[1]) < min_steps:
            continue
        other = translations.setdefault(int(match[1]), path)
        if other is not path:
            raise UsageError(f"two translations of step {match[1]}: {other} and {path}")
    if not translations:
        raise UsageError(f"{directory} holds no file named NAME-STEP of step {min_steps} or later")
    return sorted(translations.items())


def _write_events(directory: str, by_step: dict[int, dict[str, float]]) -> None:
    with quiet_import():  # Scores of one file need no TensorFlow.
        from t2tp.trainer.hooks.summaries import SummaryWriter
    summaries = SummaryWriter(directory)
    for step, scores in by_step.items():
        summaries.write(step, scores)
    summaries.close()
