"""Instruction data: prompts and the completions that a model is to learn, and conversations.

The files of the directory in addition to the manifest: the vocabulary, and for each split the
columns `targets`, the tokens of prompt and completion, and `targets_weights`, 1 for a token that
is learned and 0 for one that is only read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from t2tp import registry
from t2tp.hparam import HParams
from t2tp.problems.codec import TextCodec
from t2tp.problems.data.fields import Field, FieldSource, TokenField, token_fields, token_specs
from t2tp.problems.data.row_layout import Texts, one_per_row, pack
from t2tp.problems.data.row_plan import RowPlan
from t2tp.problems.data.sample import BadSampleError, Sample, Samples, StoredExample
from t2tp.problems.data.shards import token_dtype
from t2tp.problems.data.stream import FeatureSpec
from t2tp.problems.problem import AnyPath, check_positive
from t2tp.problems.record_problems import RecordProblem
from t2tp.problems.sources.records import Records
from t2tp.problems.text import TextProblem
from t2tp.problems.text_files import GeneratedSamples
from t2tp.problems.vocab.chat_template import ChatTemplate, Messages, has_template, messages_of
from t2tp.problems.vocab.special_tokens import named_tokens
from t2tp.problems.vocab.vocabulary import Vocabulary
from t2tp.problems.vocab.vocabulary_file import load_vocabulary
from t2tp.suggestions import nearest

_WEIGHTS = "targets_weights"
_ARRANGEMENTS = ("packed", "padded")

# The role whose messages are learned.
_LEARNED_ROLE = "assistant"

# A text, and whether it is learned.
Piece = tuple[str, bool]


@registry.register_problem
class Instructions(RecordProblem, TextProblem):
    """Instruction data: --problem_options='files=chats.jsonl,vocabulary_from=run/huggingface'.

    A record has `messages`, a list of objects with `role` and `content`, or `prompt` and
    `completion`, two texts. The loss is that of completions, and of the messages of the role
    "assistant", each with the tokens that end it. Conversations are written by the chat template in
    `vocabulary_from`, or as `role:`, content and an empty line if it has none.

    Options, in addition to those of `RecordProblem` and `TextProblem`:
        messages, prompt, completion: names of the values.
        arrangement: of training rows: "packed" puts as many examples into a row as fit, separated
            by segments; "padded" has one per row, as other splits always have.
    """

    metric_names = (
        "loss",
        "accuracy",
        "accuracy_per_sequence",
        "neg_log_perplexity",
        "perplexity",
    )
    field_defaults = {"messages": "messages", "prompt": "prompt", "completion": "completion"}
    making_options = (
        *TextProblem.making_options,
        *("files", "validation_files", "test_files", "messages", "prompt", "completion"),
    )

    def __init__(self, options: str = ""):
        """Parses options.

        Raises:
          ValueError: as `Problem.__init__`, or the arrangement is unknown.
        """
        super().__init__(options)
        arrangement = self.options.arrangement
        if arrangement not in _ARRANGEMENTS:
            known = nearest(arrangement, _ARRANGEMENTS, "arrangements")
            raise ValueError(f"options of {self.name}: arrangement={arrangement}: {known}")

    def default_options(self) -> HParams:
        """Declares the options."""
        options = super().default_options()
        options.add("arrangement", "packed", help=f"one of {', '.join(_ARRANGEMENTS)}")
        return options

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled for other processes, in which the template is compiled again."""
        return {name: value for name, value in vars(self).items() if name != "_template"}

    @cached_property
    def _template(self) -> ChatTemplate | None:
        """The chat template beside the tokenizer, if there is one."""
        if not self.options.vocabulary_from or not has_template(self._lender):
            return None
        return ChatTemplate.from_directory(self._lender)

    def data_dependencies(self) -> dict[str, Any]:
        """Returns what the data depend on, the chat template too."""
        dependencies = super().data_dependencies()
        if self._template is not None:
            # As it writes a conversation, whatever file it is in.
            written = self._template_probe()
            dependencies["chat_template"] = hashlib.sha256(written.encode()).hexdigest()
        return dependencies

    def read(self, files: Sequence[Sequence[Path]], scratch: Path) -> Samples:
        """Opens the records; a sample has its pieces of text, and where it is."""
        records = Records(files[0], scratch)
        return GeneratedSamples(
            len(records), lambda number: self._sample(records[number], records.location(number))
        )

    def _sample(self, record: Mapping[str, Any], location: str) -> Sample:
        options = self.options
        try:
            adds_end = True
            if options.messages in record:
                pieces = self._of_messages(messages_of(record[options.messages]))
                adds_end = self._template is None  # A template writes the ends itself.
            elif options.prompt in record and options.completion in record:
                prompt, completion = (
                    _text(record, name) for name in (options.prompt, options.completion)
                )
                pieces = [(prompt, False), (completion, True)]
            else:
                names = ", ".join(map(repr, record)) or "nothing"
                raise ValueError(
                    f"neither {options.messages!r} nor {options.prompt!r} and"
                    f" {options.completion!r}, only {names}"
                )
            if not any(text and learned for text, learned in pieces):
                raise ValueError(
                    "there is nothing to learn: no completion, and no message of the"
                    f" role {_LEARNED_ROLE!r} with content"
                )
        except ValueError as error:
            raise BadSampleError(f"{location}: {error}") from error
        return {"pieces": pieces, "adds_end": adds_end}

    def _of_messages(self, messages: Messages) -> list[Piece]:
        """Writes a conversation.

        Raises:
          ValueError: a message has no content, or the template does not write a conversation
            message by message.
        """
        for each in messages:
            _text(each, "content")
        if self._template is None:
            return _plainly_written(messages)
        whole, pieces, done = self._template.render(messages), list[Piece](), 0
        for number, each in enumerate(messages):
            if each["role"] != _LEARNED_ROLE:
                continue
            before = self._template.render(messages[:number], add_generation_prompt=True)
            after = self._template.render(messages[: number + 1])
            if not (whole.startswith(before) and whole.startswith(after)) or (
                not done <= len(before) <= len(after)
            ):
                raise ValueError(
                    f"the chat template writes message {number + 1} in another way when others"
                    " follow, so that it cannot be told what is learned: end the conversation there"
                )
            pieces += [(whole[done : len(before)], False), (whole[len(before) : len(after)], True)]
            done = len(after)
        return [*pieces, (whole[done:], False)]

    def texts(self, sample: Sample) -> list[str]:
        """Returns the pieces."""
        return [text for text, _ in sample["pieces"]]

    def columns(self, directory: Path) -> dict[str, np.dtype]:
        """Returns the dtypes of tokens and weights."""
        return {
            "targets": token_dtype(len(load_vocabulary(directory))),
            _WEIGHTS: np.dtype(np.uint8),
        }

    def encoder(self, directory: Path) -> Callable[[Sample], StoredExample]:
        """Returns a function that encodes the pieces one by one, as they are in decoding."""
        vocabulary = load_vocabulary(directory)
        begin, end = self._begin(vocabulary), vocabulary.end_of_document

        def encode(sample: Sample) -> StoredExample:
            ids, weights = list[int](), list[int]()
            for text, learned in sample["pieces"]:
                tokens = vocabulary.encode(text)
                if learned and sample["adds_end"]:
                    tokens = [*tokens, end]
                ids += tokens
                weights += _weights(tokens, end) if learned else [0] * len(tokens)
            if ids[:1] == begin:  # The model reads it before the first target in any case.
                ids, weights = ids[1:], weights[1:]
            last = max(position for position, weight in enumerate(weights) if weight)
            ids, weights = ids[: last + 1], weights[: last + 1]
            if ids[-1] != end:
                ids, weights = [*ids, end], [*weights, 1]
            columns = {"targets": np.array(ids), _WEIGHTS: np.array(weights)}
            return StoredExample(columns, int(vocabulary.byte_lengths[columns["targets"]].sum()))

        return encode

    def decoder(self, directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
        """Returns a function that decodes prompt and completion, or of several the last."""
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

    def vocab_sizes(self, data_dir: AnyPath) -> dict[str, int]:
        """Returns the number of tokens."""
        return {"targets": len(self.vocabulary(data_dir))}

    def codec(self, data_dir: AnyPath) -> TextCodec:
        """Returns the codec of prompts and completions."""
        return TextCodec(self.vocabulary(data_dir))

    def features(self, batch_size: int, length: int) -> dict[str, FeatureSpec]:
        """Returns targets with segmentation and position, and their weights."""
        check_positive(batch_size=batch_size, length=length)
        specs = token_specs("targets")
        return {**specs, _WEIGHTS: specs["targets"]}

    def examples(self, data_dir: AnyPath, split: str, length: int) -> FieldSource:
        """Returns the examples of a split, one per row; those that are too long are left out."""
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
        arranged: Callable[[Texts, int], RowPlan],
    ) -> FieldSource:
        stored = self.stored(data_dir, split)
        what, indexes = f"{split} of {self.name}", self.index_directory(data_dir)
        plan = arranged(Texts({"targets": stored["targets"]}, split, what, indexes), length)
        fields: dict[str, Field] = {
            **token_fields("targets", stored["targets"], plan, length),
            _WEIGHTS: TokenField(stored[_WEIGHTS], plan, length),
        }
        return FieldSource(len(plan), fields)

    def _begin(self, vocabulary: Vocabulary) -> list[int]:
        """Returns the token that templates begin a conversation with, if there is one."""
        token = named_tokens(self._lender).get("bos_token") if self._template else None
        ids = vocabulary.encode(token) if token else []
        return ids if len(ids) == 1 else []

    def _template_probe(self) -> str:
        assert self._template is not None
        return self._template.render(
            [{"role": "user", "content": "a"}, {"role": _LEARNED_ROLE, "content": "b"}]
        )


def _weights(tokens: Sequence[int], end: int) -> list[int]:
    """Returns the weights of a reply: what a template writes after its last EOS is not learned."""
    last = max((n for n, token in enumerate(tokens) if token == end), default=len(tokens) - 1)
    return [int(number <= last) for number in range(len(tokens))]


def _plainly_written(messages: Messages) -> list[Piece]:
    pieces = list[Piece]()
    for each in messages:
        pieces.append((f"{each['role']}:\n", False))
        pieces.append((each["content"], each["role"] == _LEARNED_ROLE))
        pieces.append(("\n\n", False))
    return pieces


def _text(record: Mapping[str, Any], name: str) -> str:
    text = record.get(name)
    if not isinstance(text, str):
        raise ValueError(f"{name!r} is {text!r}, and must be a text")
    return text
