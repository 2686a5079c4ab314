"""`t2tp_bleu`: sacrebleu's BLEU of a translation, or of each translation in a directory."""

import re
from pathlib import Path

from absl import flags as absl_flags

from t2tp.problems.text_scores import bleu
from t2tp.quiet import quiet_import
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.local_paths import read_lines

_STEP = re.compile(r".*-(\d+)")


def run(flags: absl_flags.FlagValues) -> None:
    """Prints the scores of the files that the flags name."""
    if not flags.reference or not (flags.translation or flags.translations_dir):
        raise UsageError("give --reference, and either --translation or --translations_dir")
    with as_usage_error(OSError, ModuleNotFoundError, ValueError):
        if flags.translation:
            for name, score in _scores(flags.translation, flags.reference).items():
                print(f"{name} = {score:6.2f}")
            return
        by_step = {}
        for step, path in _translations(flags.translations_dir):
            by_step[step] = _scores(path, flags.reference)
            print(f"step {step}  " + "  ".join(f"{k} = {v:6.2f}" for k, v in by_step[step].items()))
    with quiet_import():  # Scores of one file need no TensorFlow.
        from t2tp.trainer.hooks.summaries import SummaryWriter
    summaries = SummaryWriter(flags.translations_dir)
    for step, scores in by_step.items():
        summaries.write(step, scores)
    summaries.close()


def _scores(path: str | Path, reference_path: str) -> dict[str, float]:
    """Computes the BLEU scores of a file, 0 to 100, by name."""
    lines, references = read_lines(path), read_lines(reference_path)
    if len(lines) != len(references) or not references:
        raise UsageError(
            f"{path} has {len(lines)} lines, and {reference_path} has {len(references)}: expected"
            " one reference per line, and at least one"
        )
    lowered = ([line.lower() for line in text] for text in (lines, references))
    return {"BLEU_cased": bleu(lines, references), "BLEU_uncased": bleu(*lowered)}


def _translations(directory: str) -> list[tuple[int, Path]]:
    """Lists (step, file) for the files named NAME-STEP, sorted by step."""
    translations: dict[int, Path] = {}
    for path in sorted(Path(directory).iterdir()):
        match = _STEP.fullmatch(path.name)
        if not match or not path.is_file():
            continue
        other = translations.setdefault(int(match[1]), path)
        if other is not path:
            raise UsageError(f"two translations of step {match[1]}: {other} and {path}")
    if not translations:
        raise UsageError(f"{directory} holds no file named NAME-STEP")
    return sorted(translations.items())
