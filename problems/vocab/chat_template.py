"""Chat templates: what a model's conversations look like as text.

A directory of Hugging Face has one as `chat_template.jinja`, or in older ones as an entry of
`tokenizer_config.json`. It is a program in Jinja that comes with the weights, and so it runs in
Jinja's sandbox, with the settings and functions that `transformers` gives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from t2tp.problems.vocab.special_tokens import named_tokens

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"

# A message has a `role`, such as "user" or "assistant", and mostly `content`, a text.
Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """The template of a model."""

    def __init__(self, source: str, tokens: Mapping[str, str]):
        """Compiles the template.

        Args:
          source: in Jinja.
          tokens: the special tokens by the names that templates use, such as `bos_token`.

        Raises:
          ModuleNotFoundError: Jinja is not installed; says how to install it.
          ValueError: the source is no template.
        """
        try:
            from jinja2 import TemplateError
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "chat templates need the library jinja2: pip install 't2tp[text]'"
            ) from error
        self._tokens = dict(tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template is no template of Jinja: {error}") from error

    @classmethod
    def from_directory(cls, directory: Path) -> ChatTemplate:
        """Reads the template in a directory of Hugging Face.

        Raises:
          FileNotFoundError: the directory has none.
          ValueError: it is no template.
        """
        source = _source(directory)
        if source is None:
            raise FileNotFoundError(
                f"{directory} has no chat template, neither {TEMPLATE_FILE} nor an entry"
                f" chat_template in {_CONFIG_FILE}: the model was not made for conversations, or"
                " its template is to be put there"
            )
        return cls(source, named_tokens(directory))

    def render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """Returns a conversation as text.

        Args:
          messages: in order; each has a `role`, and what else the template reads.
          add_generation_prompt: whether the beginning of the model's reply follows.

        Raises:
          ValueError: the template refuses the conversation, or fails.
        """
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=[dict(each) for each in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except (TemplateError, TypeError, LookupError) as error:
            raise ValueError(
                f"the chat template does not take this conversation: {error}"
            ) from error


def has_template(directory: Path) -> bool:
    """Whether a directory has a chat template."""
    return _source(directory) is not None


def messages_of(value: Any) -> Messages:
    """Checks a conversation read from JSON.

    Args:
      value: a list of messages, or an object with such a list as `messages`.

    Raises:
      ValueError: it is neither.
    """
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages:
        raise ValueError(
            'a conversation is a list of messages, such as [{"role": "user", "content": "Hello"}],'
            ' or an object with one: {"messages": [...]}'
        )
    for each in messages:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise ValueError(f"a message is an object with a role, and this is {json.dumps(each)}")
    return messages


def _source(directory: Path) -> str | None:
    """Returns the template of a directory; of several named ones, `default`."""
    if (directory / TEMPLATE_FILE).is_file():
        return (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    if not (directory / _CONFIG_FILE).is_file():
        return None
    config = json.loads((directory / _CONFIG_FILE).read_text(encoding="utf-8"))
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found}.get("default")
    return found


def _environment() -> Any:
    """Returns Jinja's sandbox with the settings of `transformers`."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks what the model wrote, and changes nothing of the text."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            """Returns the block's contents."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # Jinja's own filter escapes what HTML has to.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return made
