"""Evaluates t2tp's models with lm-evaluation-harness: `HarnessModel` is a model of the harness.

The harness asks for log-likelihoods of texts and for continuations of prompts. Texts are tokenized
as for the harness's `--model hf`, so that t2tp and `hf` give the same numbers for the same weights.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from t2tp.decoding import DecodeOptions, Hypothesis, Request
from t2tp.decoding.scoring import Score, ScoredRow
from t2tp.problems.codec import Codec
from t2tp.problems.vocab.chat_template import ChatTemplate, Messages
from t2tp.problems.vocab.tokenizer import TokenizerVocabulary

# A continuation is decoded in parts. Rows that contain a stop string are not decoded further. The
# first part has this number of tokens, and each next part is twice as long. If fewer tokens than
# two parts remain, they are decoded at once, because tracing a program for a shorter part would
# take longer.
_FIRST_PART = 32
_MAX_GENERATED = 256  # As in `--model hf`.


class HarnessModel(TemplateLM):
    """A language model of t2tp for the harness.

    With several processes, each has a `HarnessModel`, and all evaluate the same requests.
    """

    def __init__(
        self,
        score: Callable[[Sequence[ScoredRow]], list[Score]],
        decode: Callable[[Sequence[Request], DecodeOptions], list[list[Hypothesis]]],
        codec: Codec,
        *,
        max_length: int,
        prefix_token: int,
        template: ChatTemplate | None = None,
        reads_first_token: bool = True,
    ) -> None:
        """Sets the functions that score and decode.

        Args:
          score: scores rows, as `Scorer` does.
          decode: decodes requests, as `Decoder` does.
          codec: the run's codec. With a `tokenizer.json`, the tokenizer adds special tokens to a
            text. Otherwise the text begins with `prefix_token`.
          max_length: the model's max number of positions.
          prefix_token: the first token of a text without context: BOS if there is one, else EOS.
          template: the run's chat template.
          reads_first_token: whether the model has the feature `first_token`. Otherwise all rows
            must begin with `prefix_token`.
        """
        super().__init__()
        self._score, self._decode, self._codec = score, decode, codec
        self._template = template
        self._prefix_token = prefix_token
        self._reads_first_token = reads_first_token
        self.max_length, self.max_gen_toks = max_length, _MAX_GENERATED
        self._own = codec if isinstance(codec, TokenizerVocabulary) else None

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._codec.end_of_document

    @property
    def prefix_token_id(self) -> int:
        """The first token of a text without context."""
        return self._prefix_token

    @property
    def tokenizer_name(self) -> str:
        """A name for the harness's cache of requests."""
        return f"t2tp-{type(self._codec).__name__}"

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Returns the tokens of a text.

        A `tokenizer.json` adds special tokens, unless the text begins with `prefix_token`.
        """
        tokens = self._codec.encode(string)
        if self._own is None or add_special_tokens is False or tokens[:1] == [self._prefix_token]:
            return tokens
        return self._own.encode_with_special_tokens(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        # If a token spans the border, nothing may be left of the continuation, which would score 0.
        return self._begun(before), after or self.tok_encode(continuation, add_special_tokens=False)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each continuation, and whether greedy decoding makes it.

        Raises:
          ValueError: a continuation has no tokens.
        """
        for each in requests:
            if self.tok_encode(each.args[1], add_special_tokens=False) in (
                [],
                [self._prefix_token],
            ):
                raise ValueError(
                    f"document {each.doc_id} of task {each.task_name}: the choice {each.args[1]!r}"
                    " has no token to score"
                )
        return super().loglikelihood(requests, disable_tqdm)

    def _begun(self, tokens: list[int]) -> list[int]:
        """Prepends `prefix_token`, unless it is there or the tokenizer adds special tokens."""
        is_begun = self._own is not None or tokens[:1] == [self._prefix_token]
        return tokens if is_begun else [self._prefix_token, *tokens]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        rows = []
        for _, context, continuation in requests:
            tokens = [*context, *continuation][-self.max_length - 1 :]
            first, targets = self._first_of(tokens)
            start = max(0, len(targets) - len(continuation))
            rows.append(ScoredRow(targets, start=start, first_token=first))
        found = [(each.log_prob, each.is_greedy) for each in self._score(rows)]
        for (texts, _, _), each in zip(requests, found, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, each)
        return found

    def _first_of(self, tokens: list[int]) -> tuple[int | None, list[int]]:
        """Splits tokens into the input of position 0 and the targets."""
        first, *targets = tokens
        if self._reads_first_token:
            return first, targets
        if first != self._prefix_token:
            raise ValueError(
                f"a row begins with token {first}, and the model begins all rows with"
                f" {self._prefix_token}: its method logits must read the feature first_token"
            )
        return None, targets

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-likelihood of each text, in windows of `max_length` tokens."""
        windows: list[Any] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            (text,) = request.args
            tokens = self.tok_encode(text)
            parts = get_rolling_token_windows(tokens, self._prefix_token, self.max_length, 1)
            windows += [(None, *make_disjoint_window(part)) for part in parts]
            owners += [number] * (len(windows) - len(owners))
        totals = [0.0] * len(requests)
        for number, (log_prob, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += log_prob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the continuation of each prompt up to its first stop string.

        Raises:
          ValueError: an option of generation is unknown, or leaves no room for a prompt.
        """
        found = [""] * len(requests)
        numbers = sorted(range(len(requests)), key=lambda n: str(requests[n].args[1]))
        for _, group in itertools.groupby(numbers, key=lambda n: str(requests[n].args[1])):
            members = list(group)
            texts = self._continued([requests[n].args for n in members])
            for number, text in zip(members, texts, strict=True):
                found[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return found

    def _continued(self, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
        """Continues prompts that have the same options."""
        options = normalize_gen_kwargs(requests[0][1], self.max_gen_toks)
        stops, limit = options.pop("until"), options.pop("max_gen_toks")
        samples, temperature = options.pop("do_sample"), options.pop("temperature", 0.0)
        names = {name: options.pop(name) for name in ("top_k", "top_p") if name in options}
        if options:
            raise ValueError(f"unknown options of generation: {', '.join(options)}")
        if limit >= self.max_length:
            raise ValueError(
                f"max_gen_toks={limit} leaves no room for a prompt: the model's context_length is"
                f" {self.max_length}"
            )
        method = dict(names, temperature=temperature) if samples else {"beam_size": 1}
        decoding = DecodeOptions(**method)
        prompts = [
            self._begun(self.tok_encode(text))[limit - self.max_length :] for text, _ in requests
        ]
        written: list[list[int]] = [[] for _ in prompts]
        left, part = list(range(len(prompts))), limit if samples else _FIRST_PART
        while left:
            rows = []
            for n in left:
                first, prefix = self._first_of([*prompts[n], *written[n]])
                most = rest if (rest := limit - len(written[n])) < 2 * part else part
                rows.append(Request(prefix=prefix, limit=most, first_token=first))
            unfinished = []
            for n, [best, *_] in zip(left, self._decode(rows, decoding), strict=True):
                written[n] += best.tokens
                text = self._codec.decode(written[n])
                is_full = best.has_ended or len(written[n]) >= limit or not best.tokens
                if not is_full and not any(stop and stop in text for stop in stops):
                    unfinished.append(n)
            left, part = unfinished, part * 2
        return [
            postprocess_generated_text(self._codec.decode(each), stops, None) for each in written
        ]

    def apply_chat_template(
        self, chat_history: Messages, add_generation_prompt: bool = True
    ) -> str:
        """Returns a conversation as text, with the beginning of a reply if requested.

        Raises:
          ValueError: the run has no chat template, or the template rejects the conversation.
        """
        template = self._given_template()
        text = template.render(chat_history, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt:
            return text
        last = str(chat_history[-1]["content"]).strip()
        return text[: text.rindex(last) + len(last)]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the source of the chat template, for the harness's results."""
        return self._given_template().source if chat_template else None

    def _given_template(self) -> ChatTemplate:
        if self._template is None:
            raise ValueError("the run has no chat template")
        return self._template
