"""Loads embeddings from a run with another vocabulary: tokens with the same text share a row.

Token 7 of the saved run and token 40 of the new run may both stand for " the". Then row 40 of the
new embedding is loaded from row 7 of the saved embedding. All variables with the dimension `vocab`
are loaded this way, including separate logits and their bias.

    saved tokens:  <pad>  </s>  <unk>  a  " the"
    new tokens:    <pad>  </s>  <unk>  b  " the"  a
    saved rows:    0      1     2      -1  4      3

A row without a saved row (-1) is initialized to the mean of the rows that are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t2tp import problems
from t2tp.checkpoint import Checkpoint, Slice
from t2tp.checkpoint.reading import MESH_SHAPE
from t2tp.checkpoint.variables import assign_slices, slices_as_saved
from t2tp.huggingface.model_directory import read_config
from t2tp.mesh.storage import name_in_use
from t2tp.object_store.mirror import local_path
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.program.variables import SlicedVariable
from t2tp.suggestions import first_few
from t2tp.trainer.run_dir import huggingface_files, run_files

# Name of the dimension of tokens.
_VOCAB = "vocab"

# Elements to read at a time if the layout of a checkpoint is unknown.
_BLOCK = 1 << 23

# Max number of tokens that a log line lists.
_NAMED = 5


@dataclass(frozen=True)
class TokenRows:
    """The saved row of each token of a new vocabulary.

    Attributes:
      rows: int64 [new tokens], the id of the saved token with the same text, or -1.
      new: texts of new tokens without a saved row.
      lost: texts of saved tokens whose rows are not used.
    """

    rows: np.ndarray
    new: Sequence[str]
    lost: Sequence[str]

    @classmethod
    def between(cls, there: Vocabulary, here: Vocabulary) -> TokenRows:
        """Matches the tokens of the saved run (`there`) and the new run (`here`) by their texts.

        An EOS token whose text is not found is matched to the saved EOS token.
        """
        old, new = there.token_texts, here.token_texts
        if old == new:
            return cls.of_same(len(new))
        sources, rows = _tokens_by_text(old), np.full(len(new), -1, np.int64)
        for text, tokens in _tokens_by_text(new).items():
            found = sources.get(text, [])
            # Several tokens may have the same text, such as a byte and a subword. They are matched
            # from the last to the first, because the last token is the subword, with which texts
            # are encoded.
            for back, token in enumerate(reversed(tokens) if found else ()):
                rows[token] = found[max(len(found) - 1 - back, 0)]
        if rows[here.end_of_document] < 0:
            rows[here.end_of_document] = there.end_of_document
        kept = {old[row] for row in rows if row >= 0}
        return cls(
            rows,
            [_shown(text) for text, row in zip(new, rows, strict=True) if row < 0 and text],
            [_shown(text) for text in sources if text not in kept],
        )

    @classmethod
    def of_same(cls, tokens: int) -> TokenRows:
        """Matches a vocabulary with itself."""
        return cls(np.arange(tokens), (), ())

    @property
    def are_same(self) -> bool:
        """Whether the vocabularies are the same."""
        return np.array_equal(self.rows, np.arange(len(self.rows))) and not self.lost

    @property
    def moves(self) -> bool:
        """Whether a matched token has another id in the saved vocabulary."""
        return bool(np.any((self.rows >= 0) & (self.rows != np.arange(len(self.rows)))))

    def describe(self) -> str:
        """Returns a line that counts found, new and lost tokens, with examples."""
        found = np.count_nonzero(self.rows >= 0)
        return (
            f"{found:,} of {len(self.rows):,} tokens found by their texts"
            f"{_listed('new, set to the mean of those found', self.new)}"
            f"{_listed('lost', self.lost)}"
        )

    def fits(self, saved_shape: Sequence[int], variable: SlicedVariable) -> bool:
        """Whether the saved table's and the variable's shapes differ at most in the vocabulary."""
        axis, here = vocab_axis(variable), variable.spec.shape.to_integer_list
        if axis is None or len(here) != len(saved_shape):
            return False
        pairs = zip(saved_shape, here, strict=True)
        return all(n == m or at == axis for at, (n, m) in enumerate(pairs))

    def load(self, saved: Checkpoint, name: str, variable: SlicedVariable) -> None:
        """Loads a variable with the dimension `vocab`, each row from its saved row.

        Slices that differ only in their rows share one pass over the saved table.

        `name` is the name of a tensor in the checkpoint. `fits` must be true for the tensor's
        shape.
        """
        axis, shape = vocab_axis(variable), saved.shapes()[name]
        assert axis is not None
        # A table may have more rows than its vocabulary has tokens. The additional rows are loaded
        # only if the vocabularies are equal.
        sources = np.arange(variable.spec.shape.to_integer_list[axis])
        if not self.are_same:
            count = min(len(self.rows), len(sources))
            sources[:count], sources[count:] = self.rows[:count], -1
        sources[sources >= shape[axis]] = -1
        groups: dict[tuple, list[tuple[int, ...]]] = {}
        regions = {
            begin: [(part.start, part.stop - part.start) for part in variable.region(pnum)]
            for begin, pnum in variable.local_owners().items()
        }
        for begin, region in regions.items():
            groups.setdefault((*region[:axis], *region[axis + 1 :]), []).append(begin)
        values, dtype = {}, variable.spec.dtype.as_numpy_dtype
        for columns, begins in groups.items():
            tables = {
                begin: np.zeros([size for _, size in regions[begin]], dtype) for begin in begins
            }
            by_row = {begin: np.moveaxis(table, axis, 0) for begin, table in tables.items()}
            total, found = np.zeros([size for _, size in columns]), 0
            for first, last in _row_ranges(saved, name, axis):
                box = [*columns[:axis], (first, last - first), *columns[axis:]]
                begin, size = zip(*box, strict=True)
                part = Slice(name, shape, begin, size, saved.dtypes()[name])
                (block,) = saved.read([part])
                block = np.moveaxis(block.numpy().astype(np.float64), axis, 0)
                targets = np.flatnonzero((sources >= first) & (sources < last))
                block = block[sources[targets] - first]
                total, found = total + block.sum(0), found + len(targets)
                for begin, table in by_row.items():
                    inside = (targets >= begin[axis]) & (targets < begin[axis] + len(table))
                    table[targets[inside] - begin[axis]] = block[inside]
            for begin, table in by_row.items():
                own = sources[begin[axis] : begin[axis] + len(table)]
                table[own < 0] = total / max(found, 1)
                values[begin] = tables[begin]
        assign_slices(variable, values)


# (rows, reason). If a vocabulary is missing or unknown, the rows are None. The reason is "", or
# says why the saved run's vocabulary is unknown.
MatchedRows = tuple[TokenRows | None, str]


def vocab_axis(variable: SlicedVariable) -> int | None:
    """Returns the index of a variable's dimension `vocab`, or None."""
    names = [name_in_use(each) for each in variable.spec.shape.dimension_names]
    return names.index(_VOCAB) if _VOCAB in names else None


def rows_between(path: str, vocabulary: Vocabulary | None) -> MatchedRows:
    """Matches a new run's vocabulary with the vocabulary of the run that it starts from.

    `path` may also be a Hugging Face directory. `vocabulary` is None if the new run's problem has
    no text.
    """
    if vocabulary is None:
        return None, ""
    try:
        there = vocabulary_at(path)
    except (ValueError, LookupError, OSError) as error:
        return None, str(error)
    return (None if there is None else TokenRows.between(there, vocabulary)), ""


def vocabulary_at(path: str) -> Vocabulary | None:
    """Returns the vocabulary of a run or a model's directory; None if its problem has no text.

    Raises:
      ValueError, LookupError, OSError: it is unknown, for example because the data have changed.
    """
    if huggingface_files.is_model_directory(path):
        _, model_type = read_config(Path(path))
        return problems.find(model_type.problem).vocabulary(path)
    run = run_files.run_of(path)
    if run is None:
        raise LookupError(f"{path} is not in the directory of a run")
    flags = run_files.read_flags(run)
    problem = problems.find(flags["problem"], flags.get("problem_options") or "")
    data_dir = local_path(flags.get("data_dir") or "", is_lazy=True)
    digest = flags.get("data_digest")
    if digest and problem.digest(data_dir) != digest:
        raise ValueError(f"the data in {data_dir} have changed")
    return problem.vocabulary(huggingface_files.tokenizer_directory(run) or data_dir)


def _row_ranges(saved: Checkpoint, name: str, axis: int) -> list[tuple[int, int]]:
    """Returns begin and end of the blocks of rows to read.

    TensorFlow reads a saved slice as a whole. So a block is one saved slice's range of rows, if the
    checkpoint records its layout.
    """
    shape = saved.shapes()[name]
    if MESH_SHAPE in saved.metadata:
        parts = slices_as_saved(saved, name)
        return sorted({(part.begin[axis], part.begin[axis] + part.size[axis]) for part in parts})
    rows = max(1, _BLOCK * shape[axis] // math.prod(shape))
    return [(begin, min(begin + rows, shape[axis])) for begin in range(0, shape[axis], rows)]


def _tokens_by_text(texts: Sequence[bytes | str]) -> dict[bytes | str, list[int]]:
    found: dict[bytes | str, list[int]] = {}
    for token, text in enumerate(texts):
        if text:
            found.setdefault(text, []).append(token)
    return found


def _shown(text: bytes | str) -> str:
    return repr(text if isinstance(text, str) else text.decode("utf-8", errors="replace"))


def _listed(what: str, texts: Sequence[str]) -> str:
    return f"; {len(texts):,} {what}: {first_few(texts, _NAMED, ', ')}" if texts else ""
