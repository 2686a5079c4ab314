"""One vocabulary for the problems of a mixture, trained on their texts in the mixture's shares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from t2tp.problems.generation import GenerationSettings, bad_limit
from t2tp.problems.problem import Problem
from t2tp.problems.samples import BadSamples, ShuffledSamples, open_samples
from t2tp.problems.subwords import SAMPLE_BYTES
from t2tp.problems.text import (
    TextProblem,
    find_vocabulary,
    load_vocabulary,
    write_vocabulary,
)
from t2tp.problems.vocabulary import Vocabulary

# Options that the problems of a mixture must have in common.
_OPTIONS = ("vocab_size", "vocabulary_from")


def sharing(parts: Sequence[Problem]) -> list[TextProblem]:
    """Returns the problems for which one vocabulary has to be trained.

    They are all the problems, or none: a single one has its own, bytes need no training, and what
    is no text has fixed symbols.

    Raises:
        ValueError: some of them have a vocabulary that the others cannot use.
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
    """Gives all problems the vocabulary's options that one of them was given.

    Without a `vocab_size` it is the largest of their own.

    Raises:
        ValueError: they were given different ones, or two problems on the same data other options.
    """
    for option in _OPTIONS:
        given = {part.given_options[option] for part in parts if option in part.given_options}
        if len(given) > 1:
            raise ValueError(
                f"options of {mixture}: its problems have one vocabulary; give {option} once, "
                "without the name of a problem"
            )
        value = given.pop() if given else max(part.options.get(option) for part in parts)
        for part in parts:
            part.options.set(option, value)
    on_data: dict[Path, TextProblem] = {}
    for part in parts:
        other = on_data.setdefault(part.folder(""), part)
        if other.made_with() != part.made_with():
            raise ValueError(
                f"options of {mixture}: {other.name} and {part.name} have the same data, made with "
                "the same options; give them without the name of a problem"
            )


def make_shared_vocabulary(
    parts: Sequence[tuple[TextProblem, Path]],
    shares: Callable[[Sequence[int]], Sequence[float]],
    folder: Path,
    scratch: Path,
    settings: GenerationSettings,
) -> str:
    """Writes the vocabulary into the mixture's folder and into those of its problems.

    Args:
        parts: the problems, each with the folder in which its data are being made, downloads done.
        shares: numbers of the problems' samples -> their shares, with any sum.
        folder: the mixture's.
        scratch: where the downloads are.
        settings: how the data are made.

    Returns:
        The name of the file.
    """
    first, _ = parts[0]
    if first.options.vocabulary_from:
        if find_vocabulary(folder) is None:
            home = Path(first.options.vocabulary_from).expanduser()
            write_vocabulary(folder, load_vocabulary(home))
    else:
        texts = [_Texts(part, home, scratch, settings) for part, home in parts]
        of_each = shares([len(each) for each in texts])
        is_ceiling = not any("vocab_size" in part.given_options for part, _ in parts)
        shared = in_shares(texts, of_each, SAMPLE_BYTES)
        first.make_vocabulary_of(folder, shared, is_ceiling)
    return _copy(load_vocabulary(folder), [home for _, home in parts])


def in_shares(
    texts: Sequence[Iterable[str]], shares: Sequence[float], most_bytes: int
) -> Iterator[str]:
    """Gives texts of several sources, so that each has its share of the bytes at any time.

    A source that is at its end begins anew, until all have been at their end.

    Args:
        texts: of each source, to be gone through any number of times.
        shares: of the sources, with any sum.
        most_bytes: when so many bytes have been given it is enough.
    """
    running = [iter(each) for each in texts]
    given = [0] * len(texts)
    unread = {number for number, share in enumerate(shares) if share > 0}
    sources = sorted(unread)
    while unread and sources and sum(given) < most_bytes:
        number = min(sources, key=lambda source: given[source] / shares[source])
        text = next(running[number], None)
        if text is None:
            unread.discard(number)
            if not given[number]:
                sources.remove(number)
            running[number] = iter(texts[number])
            continue
        given[number] += len(text.encode("utf-8"))
        yield text


class _Texts:
    """The texts of a problem's train split, any number of times."""

    def __init__(self, part: TextProblem, home: Path, scratch: Path, settings: GenerationSettings):
        train = part.splits[0]
        samples = open_samples(part, train, home, scratch)
        bad = BadSamples(part.name, bad_limit({train: len(samples)}, settings))
        self._part = part
        self._samples = ShuffledSamples(samples, train, bad)

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._samples)

    def __iter__(self) -> Iterator[str]:
        return self._part.all_texts(self._samples)


def _copy(vocabulary: Vocabulary, homes: Iterable[Path]) -> str:
    for home in homes:
        if find_vocabulary(home) is None:
            write_vocabulary(home, vocabulary)
    return vocabulary.file_name


def _kind(part: TextProblem) -> str:
    """Says of which kind a problem's vocabulary is."""
    if part.vocabulary_kind == "subword":
        return f"{part.subword_model} sub-words of texts with normalization {part.normalization}"
    return f"{part.vocabulary_kind}s"
