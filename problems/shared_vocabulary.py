"""One vocabulary for the problems of a mixture, trained on texts in the mixture's proportions."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from t2tp.problems.prepare.split_samples import ShuffledSamples
from t2tp.problems.problem import Problem
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.subwords import SAMPLE_BYTES
from t2tp.problems.vocab.vocabulary_file import find_vocabulary, load_vocabulary, write_vocabulary

# Options that must be the same for all problems of a mixture.
_OPTIONS = ("vocab_size", "vocabulary_from")


def sharing(parts: Sequence[Problem]) -> list[TextProblem]:
    """Returns the problems for which a common vocabulary has to be trained: all or none.

    No vocabulary has to be trained for a single problem, for a vocabulary of bytes, or if a problem
    has no text.

    Raises:
      ValueError: the problems' vocabularies are of different kinds.
    """
    texts = [part for part in parts if isinstance(part, TextProblem)]
    for first, other in itertools.pairwise(texts):
        if _kind(first) != _kind(other):
            raise ValueError(
                f"{first.name} and {other.name} cannot be mixed, as their vocabularies are of "
                f"other kinds: {_kind(first)} and {_kind(other)}"
            )
    is_needed = len(texts) > 1 and len(texts) == len(parts) and texts[0].vocabulary_kind != "byte"
    return texts if is_needed else []


def agree(mixture: str, parts: Sequence[TextProblem]) -> None:
    """Gives all problems the vocabulary options that were given to one of them.

    Without a given `vocab_size`, the largest default is used.

    Raises:
      ValueError: the given values differ, or the options of two problems on the same data differ.
    """
    for option in _OPTIONS:
        values = {part.given_options[option] for part in parts if option in part.given_options}
        if len(values) > 1:
            raise ValueError(
                f"options of {mixture}: its problems have one vocabulary; give {option} once, "
                "without the name of a problem"
            )
        value = values.pop() if values else max(part.options.get(option) for part in parts)
        for part in parts:
            part.options.set(option, value)
    on_data: dict[Path, TextProblem] = {}
    for part in parts:
        other = on_data.setdefault(part.directory(""), part)
        if other.generation_options() != part.generation_options():
            raise ValueError(
                f"options of {mixture}: {other.name} and {part.name} have the same data, made with "
                "the same options; give them without the name of a problem"
            )


def make_shared_vocabulary(
    parts: Sequence[tuple[TextProblem, Path, ShuffledSamples]],
    shares: Callable[[Sequence[int]], Sequence[float]],
    directory: Path,
) -> str:
    """Writes the vocabulary for the mixture and its problems; returns the name of its file.

    Args:
      parts: the problems, each with the directory in which its data are being made and the
        samples of its train split.
      shares: numbers of the problems' samples -> their proportions, with any sum.
      directory: directory of the mixture's data.
    """
    proportions = shares([len(samples) for _, _, samples in parts])
    is_ceiling = not any("vocab_size" in part.given_options for part, _, _ in parts)
    sources = [partial(part.all_texts, samples) for part, _, samples in parts]
    texts = interleave(sources, proportions, SAMPLE_BYTES)
    parts[0][0].make_vocabulary_of(directory, texts, is_ceiling)
    vocabulary = load_vocabulary(directory)
    for _, part_dir, _ in parts:
        if find_vocabulary(part_dir) is None:
            write_vocabulary(part_dir, vocabulary)
    return vocabulary.file_name


def interleave(
    texts: Sequence[Callable[[], Iterable[str]]], shares: Sequence[float], most_bytes: int
) -> Iterator[str]:
    """Yields texts of several sources, keeping the sources' total bytes in proportion.

    `texts` are functions that return all texts of a source. An exhausted source is read again,
    until every source has been exhausted once or `most_bytes` bytes were yielded. The proportions
    `shares` may have any sum.
    """
    running = [iter(each()) for each in texts]
    num_bytes = [0] * len(texts)
    unread = {number for number, share in enumerate(shares) if share > 0}
    sources = sorted(unread)
    while unread and sources and sum(num_bytes) < most_bytes:
        # The source that is furthest behind its proportion is next.
        number = min(sources, key=lambda source: num_bytes[source] / shares[source])
        text = next(running[number], None)
        if text is None:
            unread.discard(number)
            if not num_bytes[number]:
                sources.remove(number)
            running[number] = iter(texts[number]())
            continue
        num_bytes[number] += len(text.encode("utf-8"))
        yield text


def _kind(part: TextProblem) -> str:
    """Describes a problem's vocabulary, for comparison and errors."""
    if part.vocabulary_kind == "subword":
        return f"{part.subword_model} sub-words of texts with normalization {part.normalization}"
    return f"{part.vocabulary_kind}s"
