"""Preference data: prompts with a chosen and a rejected reply.

Both texts of a pair are stored as one example, so packing cannot separate them. In a row, each text
is a segment of its own: the pair's first segment (odd number) has the chosen reply, the next one
the rejected reply. Neither sees the other:

    targets               prompt  chosen <end>   prompt  rejected <end>   ...
    targets_segmentation      1 1 1 1 1              2 2 2 2 2 2          3 ...
    targets_position          0 1 2 3 4              0 1 2 3 4 5          0 ...
    targets_weights           0 0 1 1 1              0 0 1 1 1 1          0 ...

`reference_chosen` and `reference_rejected` are the reference model's log-probabilities of the
replies, float32 [batch, pairs]. The trainer computes them once, before the first step.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.data.batch_stream import EMPTY, FeatureSpec
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import FLOAT, Field, TokenField
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import Sample, StoredExample
from t2tp.problems.instructions import LEARNED_ROLE, Instructions, sharegpt_messages, text_in
from t2tp.problems.vocab.chat_template import conversation_of

_REPLIES = ("chosen", "rejected")
# Features: the reference's log-probabilities of the replies.
_REFERENCES = tuple(f"reference_{reply}" for reply in _REPLIES)
_POSITION = "targets_position"
_PAIR_SPEC = FeatureSpec(("batch", "pairs"), FLOAT)


@registry.register_problem
class Preferences(Instructions):
    """Preference data: --problem_options='files=pairs.jsonl,vocabulary_from=run/huggingface'.

    A record has `chosen` and `rejected`, and mostly `prompt`, in one of these forms, as in TRL:
    - three texts;
    - three lists of messages, objects with `role` and `content`;
    - two texts or two conversations without `prompt`: their common beginning is the prompt;
    - ShareGPT's: `conversations` is the prompt, and each reply an object with `from` and `value`.

    Options, in addition to the options of `Instructions`:
        chosen, rejected: names of these values in a record.
        max_prompt: max tokens of a prompt, which loses its beginning; 0: no limit.
        max_reply: max tokens of a reply, which loses its end; 0: no limit.
    A pair whose two texts do not fit into a row together is left out.
    """

    metric_names = (
        *("loss", "reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected"),
        *("log_prob_chosen", "log_prob_rejected", "reference_kl"),
    )
    features: Mapping[str, FeatureSpec] = {
        **Instructions.features,
        **dict.fromkeys(_REFERENCES, _PAIR_SPEC),
    }
    field_defaults: Mapping[str, str] = {
        **Instructions.field_defaults,
        **{name: name for name in _REPLIES},
    }

    def __init__(self, options: str = ""):
        """Parses the options; see `Problem`."""
        super().__init__(options)
        # (split, whether its rows are packed) -> the scores of its rows.
        self._references: dict[tuple[str, bool], Mapping[str, np.ndarray]] = {}

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        for name, what in (("max_prompt", "a prompt"), ("max_reply", "a reply")):
            options.add(name, 0, help=f"max tokens of {what}; 0: no limit", min=0)
        return options

    def set_references(self, split: str, packed: bool, scores: Mapping[str, np.ndarray]) -> None:
        """Sets the features `reference_*` of a split's rows, float32 [rows, pairs] each.

        A feature that is missing in `scores` is 0.
        """
        self._references[split, packed] = scores

    def _sample(self, record: Mapping[str, Any]) -> Sample:
        pair = self._pair(record)
        if pair[0] == pair[1]:
            raise ValueError("chosen and rejected are the same")
        replies = [self._reply(record, *each) for each in pair]
        return {"replies": replies, "adds_end": replies[0]["adds_end"]}

    def _pair(self, record: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """Returns (prompt, reply) for the chosen and the rejected reply: texts, or messages."""
        options = self.options
        names = [options.get(name) for name in _REPLIES]
        if missing := [name for name in names if name not in record]:
            given = ", ".join(map(repr, record)) or "nothing"
            raise ValueError(f"{missing[0]!r} is missing; the record has {given}")
        replies = [record[name] for name in names]
        if "conversations" in record and options.prompt not in record:
            prompt = sharegpt_messages(record["conversations"])
            return [(prompt, sharegpt_messages([reply])) for reply in replies]
        if all(isinstance(reply, str) for reply in replies):
            if options.prompt in record:
                return [(text_in(record, options.prompt), reply) for reply in replies]
            # The space before a word belongs to the reply: it is mostly part of the word's token.
            shared = _shared(*replies)
            prompt = replies[0][:shared].removesuffix(" ")
        else:
            replies = [conversation_of(reply).messages for reply in replies]
            if options.prompt in record:
                asked = conversation_of(record[options.prompt]).messages
                return [(asked, reply) for reply in replies]
            prompt = replies[0][: _shared(*replies)]
        return [(prompt, reply[len(prompt) :]) for reply in replies]

    def _reply(self, record: Mapping[str, Any], prompt: Any, reply: Any) -> Sample:
        """Returns the text of a prompt with a reply, and the spans of the reply."""
        if isinstance(prompt, str) and isinstance(reply, str):
            whole = prompt + reply
            text, spans, adds_end = whole, [(len(prompt), len(whole))], True
        elif isinstance(prompt, str) or isinstance(reply, str):
            raise ValueError("prompt and replies must be texts, or all be lists of messages")
        else:
            # The replies of the model in the prompt are read, not learned.
            learned = [each for each in reply if each.get("weight") != 0]
            count = sum(each["role"] == LEARNED_ROLE for each in learned)
            whole_record = {**record, "messages": [*prompt, *reply]}
            text, spans = self._conversation(conversation_of(whole_record))
            spans, adds_end = spans[len(spans) - count :], False
        if not any(begin < end for begin, end in spans):
            raise ValueError(f"a reply has no text of the role {LEARNED_ROLE!r}")
        return {"text": text, "spans": spans, "adds_end": adds_end}

    def texts(self, sample: Sample) -> list[str]:
        """Returns both texts, on which the vocabulary is trained."""
        return [each["text"] for each in sample["replies"]]

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtypes of tokens, weights and positions."""
        return {**super().columns(directory), _POSITION: np.dtype(np.uint32)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that tokenizes both texts and concatenates them."""
        encode_one, options = super().encoder(directory), self.options

        def encode(sample: Sample) -> StoredExample:
            examples = [encode_one(reply) for reply in sample["replies"]]
            parts = [
                _shortened(each.columns, options.max_prompt, options.max_reply) for each in examples
            ]
            for part in parts:
                part[_POSITION] = np.arange(len(part["targets"]))
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            return StoredExample(columns, sum(each.text_bytes for each in examples))

        return encode

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns a function that decodes the prompt and both replies."""
        decode_one = super().decoder(directory)

        def decode(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
            cut = int(np.flatnonzero(columns[_POSITION] == 0)[1])
            parts = [
                decode_one({name: values[part] for name, values in columns.items()})
                for part in (slice(cut), slice(cut, None))
            ]
            replies = {name: part["completion"] for name, part in zip(_REPLIES, parts, strict=True)}
            return {"prompt": parts[0]["prompt"], **replies}

        return decode

    def _fields(
        self, stored: Mapping[str, Column], plan: RowPlan, length: int, split: str, packed: bool
    ) -> dict[str, Field]:
        position = TokenField(stored[_POSITION], plan, length)
        references = {
            name: _ReferenceField(
                plan.most_examples, name, lambda: self._references_of(split, packed)
            )
            for name in _REFERENCES
        }
        return {
            **super()._fields(stored, plan, length, split, packed),
            "targets_segmentation": _TextField(stored["targets"], plan, length, position),
            _POSITION: position,
            **references,
        }

    def _references_of(self, split: str, packed: bool) -> Mapping[str, np.ndarray]:
        try:
            return self._references[split, packed]
        except KeyError:
            raise ValueError(
                f"the reference's scores of {split} are not known: call set_references first"
            ) from None


class _TextField(TokenField):
    """The number of the text in the row, from 1, and 0 for padding: int32 [batch, length]."""

    def __init__(self, column: Column, plan: RowPlan, length: int, position: TokenField):
        super().__init__(column, plan, length, "segmentation")
        self._position = position

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of rows; see `ExampleSource.read`."""
        whole = (slice(None),)
        is_token = super().read(rows, whole) > 0
        begins = is_token & (self._position.read(rows, whole) == 0)
        return (begins.cumsum(axis=1, dtype=np.int32) * is_token)[:, parts[0]]


class _ReferenceField:
    """The reference's scores of a row's pairs, float32 [batch, pairs]."""

    spec = _PAIR_SPEC

    def __init__(self, pairs: int, name: str, scores: Callable[[], Mapping[str, np.ndarray]]):
        self.shape = (pairs,)
        self._name = name
        self._scores = scores

    def read(self, rows: np.ndarray, parts: tuple[slice, ...]) -> np.ndarray:
        """Reads slices of rows; see `ExampleSource.read`."""
        scores = self._scores().get(self._name)
        values = np.zeros((len(rows), *self.shape), FLOAT)
        if scores is not None:
            values[rows != EMPTY] = scores[rows[rows != EMPTY]]
        return values[:, parts[0]]


def _shared(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Returns the length of the common beginning of two sequences."""
    same = (a == b for a, b in zip(ours, theirs, strict=False))
    return sum(itertools.takewhile(bool, same))


def _shortened(
    columns: Mapping[str, np.ndarray], max_prompt: int, max_reply: int
) -> dict[str, np.ndarray]:
    """Cuts the beginning of a long prompt and the end of a long reply."""
    begin = int(np.flatnonzero(columns["targets_weights"])[0])
    first = max(0, begin - max_prompt) if max_prompt else 0
    end = begin + max_reply if max_reply else None
    return {name: values[first:end] for name, values in columns.items()}
