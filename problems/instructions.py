r"""Instruction data: conversations, or prompts with their completions.

A model learns the replies, and only reads the other text. An example is tokenized as a whole,
because a tokenizer may split the same words differently at the beginning of a text. A token's
position in the text then determines whether the model learns the token (`_` is a space):

    text     "[user] fox?\n[assistant] quick<end>\n"
    learned                           ^^^^^^^^^^^
    tokens   [user]  _fox  ?  \n  [assistant]  _quick  <end>  \n
    weights       0     0  0   0            0       1      1   0

The stored columns of a split are `targets` (tokens) and `targets_weights` (1 for tokens to learn, 0
for tokens to read). The chat template is stored too if samples are conversations.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.data.batch_stream import FeatureSpec
from t2tp.problems.data.columns import Column
from t2tp.problems.data.fields import Field, FieldSource, TokenField, token_fields, token_specs
from t2tp.problems.data.row_layout import RowTexts, one_per_row, pack
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import (
    BadSampleError,
    GeneratedSamples,
    Sample,
    Samples,
    StoredExample,
)
from t2tp.problems.metrics import TEXT_METRICS
from t2tp.problems.prepare.split_samples import ShuffledSamples
from t2tp.problems.problem import AnyPath
from t2tp.problems.record_problems import RecordProblem
from t2tp.problems.sources.records import Records
from t2tp.problems.text import TextProblem
from t2tp.problems.vocab.chat_template import (
    EXTRA_VARIABLES,
    TEMPLATE_FILE,
    ChatTemplate,
    Conversation,
    conversation_of,
    has_template,
)
from t2tp.problems.vocab.vocabulary_file import load_vocabulary

_WEIGHTS = "targets_weights"
_ARRANGEMENTS = ("packed", "padded")

# The role whose messages are learned.
LEARNED_ROLE = "assistant"

# Roles in conversations of ShareGPT's shape.
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant"), LEARNED_ROLE),
    "system": "system",
}

# (begin, end) of characters to learn.
Span = tuple[int, int]


@registry.register_problem
class Instructions(RecordProblem, TextProblem):
    """Instruction data: --problem_options='files=chats.jsonl,vocabulary_from=run/huggingface'.

    A record has one of these forms:
    - `messages`, a list of objects with `role` and `content`, and optionally `tools`, `documents`
      and `chat_template_kwargs`, which the chat template reads;
    - `prompt` and `completion`, two texts;
    - ShareGPT's: `conversations`, a list of objects with `from` and `value`;
    - Alpaca's: `instruction`, `output`, and optionally `input`, which follows the instruction after
      an empty line. Without a chat template, the instruction with its input is the prompt, and the
      output is the completion.

    The chat template in `vocabulary_from` formats conversations. A model learns completions, and
    messages of the role "assistant", each with its end tokens, except those with `weight` 0.

    Options, in addition to the options of `RecordProblem` and `TextProblem`:
        messages, prompt, completion: names of these values in a record.
        arrangement: layout of training rows. "packed" fills a row with several examples, separated
            by segments; "padded" has one example per row. Other splits are always padded.
    """

    metric_names: tuple[str, ...] = TEXT_METRICS
    features: Mapping[str, FeatureSpec] = {
        **token_specs("targets"),
        _WEIGHTS: token_specs("targets")["targets"],
    }
    field_defaults: Mapping[str, str] = {
        "messages": "messages",
        "prompt": "prompt",
        "completion": "completion",
    }
    token_columns = {"text": "targets"}
    reading_options = ("arrangement",)

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("arrangement", "packed", help="of training rows", choices=_ARRANGEMENTS)
        return options

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle, without the template's process and lock."""
        return {name: value for name, value in vars(self).items() if name != "_template"}

    @cached_property
    def _template(self) -> ChatTemplate | None:
        """The chat template next to the tokenizer, if any."""
        if not self.options.vocabulary_from or not has_template(self._lender):
            return None
        return ChatTemplate.from_directory(self._lender)

    def data_dependencies(self) -> dict[str, Any]:
        """Returns the dependencies of the data, including the chat template."""
        dependencies = super().data_dependencies()
        if self._template is not None:
            # Hashes a formatted conversation, because several files may contain the template.
            text = self._template.render(
                [{"role": "user", "content": "a"}, {"role": LEARNED_ROLE, "content": "b"}]
            )
            dependencies["chat_template"] = hashlib.sha256(text.encode()).hexdigest()
        return dependencies

    def make_vocabulary(self, directory: Path, samples: Callable[[str], ShuffledSamples]) -> str:
        """Writes the vocabulary, and the chat template if the first sample is a conversation."""
        is_chat = samples(self.splits[0]).each(lambda sample: not sample["adds_end"])
        if self._template is not None and next(is_chat, False):
            self._template.write(directory)
        return super().make_vocabulary(directory, samples)

    def change_hparams(self, hparams: HParams, data_dir: AnyPath | None = None) -> None:
        """Sets `bos_token_id` to the first token of the data's chat template."""
        super().change_hparams(hparams, data_dir)
        if data_dir and "bos_token_id" in hparams and has_template(self.directory(data_dir)):
            first = _first_token(self.directory(data_dir))
            hparams.set("bos_token_id", hparams.bos_token_id if first is None else first)

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the records; a sample has a text and the spans of its replies."""
        records = Records(files[0], scratch)

        def sample(number: int) -> Sample:
            record = records[number]
            try:
                return self._sample(record)
            except ValueError as error:
                raise BadSampleError(f"{records.location(number)}: {error}") from error

        return GeneratedSamples(len(records), sample)

    def _sample(self, record: Mapping[str, Any]) -> Sample:
        options, record = self.options, self._in_our_shape(record)
        adds_end = options.messages not in record  # A chat template writes the ends itself.
        if not adds_end:
            extra = {name: record[name] for name in EXTRA_VARIABLES if name in record}
            found = record[options.messages]
            found = found if isinstance(found, dict) else {"messages": found}
            text, spans = self._conversation(conversation_of({**extra, **found}))
        elif ignored := next((name for name in EXTRA_VARIABLES if record.get(name)), None):
            raise ValueError(f"{ignored!r} belongs to a conversation, and here is none")
        elif options.prompt in record and options.completion in record:
            prompt, completion = (
                text_in(record, name) for name in (options.prompt, options.completion)
            )
            text, spans = prompt + completion, [(len(prompt), len(prompt + completion))]
        else:
            names = ", ".join(map(repr, record)) or "nothing"
            raise ValueError(
                f"neither {options.messages!r} nor {options.prompt!r} and"
                f" {options.completion!r}, only {names}"
            )
        if not any(begin < end for begin, end in spans):
            raise ValueError(
                "there is nothing to learn: no completion, and no message of the"
                f" role {LEARNED_ROLE!r} with content"
            )
        return {"text": text, "spans": spans, "adds_end": adds_end}

    def _in_our_shape(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Converts a record of ShareGPT's or Alpaca's shape; returns other records unchanged."""
        options = self.options
        if options.messages in record or options.prompt in record:
            return record
        if "conversations" in record:
            return {**record, options.messages: sharegpt_messages(record["conversations"])}
        if "instruction" not in record or "output" not in record:
            return record
        parts = [text_in(record, name) for name in ("instruction", "input") if record.get(name)]
        prompt, reply = "\n\n".join(parts), text_in(record, "output")
        if self._template is None:
            return {**record, options.prompt: f"{prompt}\n\n", options.completion: reply}
        said = {"user": prompt, LEARNED_ROLE: reply}
        messages = [{"role": r, "content": text} for r, text in said.items()]
        return {**record, options.messages: messages}

    def _conversation(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """Returns a conversation as text, and the spans of its replies that are learned."""
        messages = conversation.messages
        if self._template is None:
            raise ValueError(
                f"a conversation needs a chat template, and vocabulary_from="
                f"{self.options.vocabulary_from} names no directory with one: put the model's"
                f" {TEMPLATE_FILE} there, or write prompts and completions"
            )
        whole, spans, reply_end = self._template.render(conversation), list[Span](), 0
        for number, each in enumerate(messages):
            if not isinstance(each.get("content"), list) and not each.get("tool_calls"):
                text_in(each, "content")
            if each.get("weight") not in (None, 0, 1):
                raise ValueError(f"'weight' of a message is {each['weight']!r}, and must be 0 or 1")
            if each["role"] != LEARNED_ROLE or each.get("weight") == 0:
                continue
            begun, done = (
                conversation._replace(messages=messages[:count]) for count in (number, number + 1)
            )
            before = self._template.render(begun, add_generation_prompt=True)
            after = self._template.render(done)
            if not (whole.startswith(before) and whole.startswith(after)) or (
                not reply_end <= len(before) <= len(after)
            ):
                raise ValueError(
                    f"the chat template writes message {number + 1} differently when others follow,"
                    " as templates do that drop earlier reasoning, so its tokens cannot be located:"
                    ' end the conversation there, or give the message "weight": 0'
                )
            spans.append((len(before), len(after)))
            reply_end = len(after)
        return whole, spans

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtypes of tokens and weights."""
        return {**super().columns(directory), _WEIGHTS: np.dtype(np.uint8)}

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that tokenizes a text and locates its replies."""
        vocabulary = load_vocabulary(directory)
        ends, first = vocabulary.end_ids, _first_token(directory)

        def encode(sample: Sample) -> StoredExample:
            tokens = vocabulary.encode_spans(sample["text"])
            ids, weights = [token for token, *_ in tokens], [0] * len(tokens)
            for span in sample["spans"]:
                reply = [n for n, (_, *place) in enumerate(tokens) if _overlap(place, span)]
                # Text after the last end token, such as a line end, is not learned.
                last = max((n for n in reply if ids[n] in ends), default=len(ids))
                for number in reply:
                    weights[number] = int(number <= last)
            if not sample["adds_end"] and ids[:1] == [first]:
                ids, weights = ids[1:], weights[1:]  # Models put BOS before the first target.
            if not any(weights):
                raise ValueError("the vocabulary has no tokens for the text to learn")
            size = max(number for number, weight in enumerate(weights) if weight) + 1
            ids, weights = ids[:size], weights[:size]
            if sample["adds_end"] or ids[-1] not in ends:
                ids, weights = [*ids, vocabulary.end_of_document], [*weights, 1]
            columns = {"targets": np.array(ids), _WEIGHTS: np.array(weights)}
            return StoredExample(columns, int(vocabulary.byte_lengths[columns["targets"]].sum()))

        return encode

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns a function that decodes the last completion and the text before it."""
        vocabulary = load_vocabulary(directory)

        def decode(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
            ids, weights = columns["targets"], columns[_WEIGHTS]
            unread = np.flatnonzero(weights == 0)
            first = int(unread[-1]) + 1 if len(unread) else 0
            return {
                "prompt": vocabulary.decode(ids[:first]),
                "completion": vocabulary.decode(ids[first:]),
            }

        return decode

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns the examples of a split, one per row; examples that are too long are dropped."""
        return self._source(data_dir, split, length, one_per_row)

    def train_examples(self, data_dir: AnyPath, length: int) -> FieldSource:
        """Returns the training rows, packed or padded."""
        split = self.splits[0]
        if self.options.arrangement == "padded":
            return self.examples(data_dir, split, length)
        return self._source(data_dir, split, length, pack)

    def _source(
        self,
        data_dir: AnyPath,
        split: str,
        length: int,
        arrange: Callable[[RowTexts, int], RowPlan],
    ) -> FieldSource:
        stored = self.stored(data_dir, split)
        title, indexes = f"{split} of {self.name}", self.index_directory(data_dir)
        plan = arrange(RowTexts({"targets": stored["targets"]}, split, title, indexes), length)
        return FieldSource(len(plan), self._fields(stored, plan, length, split, arrange is pack))

    def _fields(
        self, stored: Mapping[str, Column], plan: RowPlan, length: int, split: str, packed: bool
    ) -> dict[str, Field]:
        """Returns the fields of a split's rows."""
        return {
            **token_fields("targets", stored["targets"], plan, length),
            _WEIGHTS: TokenField(stored[_WEIGHTS], plan, length),
        }


def _first_token(directory: Path) -> int | None:
    """Returns the first token of conversations, if prepared data have a chat template."""
    if not has_template(directory):
        return None
    return ChatTemplate.from_directory(directory).first_token(load_vocabulary(directory).encode)


def sharegpt_messages(turns: Any) -> list[dict[str, str]]:
    """Converts ShareGPT's turns, objects with `from` and `value`, to messages.

    Raises:
      ValueError: the value is no list of turns, or a turn is of an unknown role.
    """
    if not isinstance(turns, list):
        raise ValueError(f"'conversations' must be a list of turns, not {turns!r}")
    messages = []
    for turn in turns:
        if not isinstance(turn, dict) or turn.get("from") not in _SHAREGPT_ROLES:
            known = ", ".join(_SHAREGPT_ROLES)
            raise ValueError(f"'conversations' has {turn!r}: 'from' must be one of {known}")
        role = _SHAREGPT_ROLES[turn["from"]]
        messages.append({"role": role, "content": text_in(turn, "value")})
    return messages


def _overlap(place: Sequence[int], span: Span) -> bool:
    """Whether a token overlaps a span; a token of no characters does if the next character does."""
    begin, end = place
    return begin < span[1] and max(end, begin + 1) > span[0]


def text_in(record: Mapping[str, Any], name: str) -> str:
    """Returns a text of a record; raises ValueError if the value is not a text."""
    text = record.get(name)
    if not isinstance(text, str):
        raise ValueError(f"{name!r} is {text!r}, and must be a text")
    return text
