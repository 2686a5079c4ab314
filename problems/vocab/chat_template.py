"""Chat templates: programs that write a conversation as text.

A directory of Hugging Face has its template in `chat_template.jinja`, or in older ones in
`tokenizer_config.json`. It is a program in Jinja that a stranger may have written. So it runs in
Jinja's sandbox, with the settings and functions that `transformers` gives it, and for a limited
time.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from t2tp import untrusted_json
from t2tp.atomic_file import write_text
from t2tp.problems.vocab.special_tokens import CONFIG_FILES, named_tokens, read_if_there

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = CONFIG_FILES[0]

# Earlier versions of Jinja let a template leave the sandbox.
_MIN_JINJA = (3, 1, 6)
# Processor time of a rendering.
MAX_SECONDS = 10.0
# Larger powers and products take long or much memory, and Python cannot interrupt them.
_MAX_SIZE = 10_000_000

# A message has a `role`, such as "user" or "assistant", and mostly `content`, a text.
Messages = Sequence[Mapping[str, Any]]

# Conversations that share only the text a template writes before any content.
_USER = {"role": "user", "content": "a"}
_ANY = ([_USER], [{**_USER, "content": "b"}], [{"role": "system", "content": "c"}, _USER])


class ChatTemplate:
    """The template of a model."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], max_seconds: float = MAX_SECONDS
    ) -> None:
        """Compiles the template.

        Args:
          source: the template, in Jinja.
          tokens: special tokens by the names that templates use, such as `bos_token`.
          max_seconds: limit of the processor time of a rendering.

        Raises:
          ModuleNotFoundError: Jinja is not installed or too old; says how to install it.
          ValueError: the source is not a template.
        """
        try:
            import jinja2
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "chat templates need the library jinja2: pip install -e '.[text]'"
            ) from error
        if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < _MIN_JINJA:
            raise ModuleNotFoundError(
                f"the sandbox of jinja2 {jinja2.__version__} is not safe: pip install -e '.[text]'"
            )
        self._source, self._tokens, self._max_seconds = source, dict(tokens), max_seconds
        not_one = "the chat template is not a template of Jinja"
        with _as_value_error(not_one), _time_limit(max_seconds):
            self._template = _environment().from_string(source)

    @classmethod
    def from_directory(cls, directory: Path) -> ChatTemplate:
        """Reads the template in a directory of Hugging Face.

        Raises:
          FileNotFoundError: the directory has no template.
          ValueError: a file is damaged.
        """
        source = _read_source(directory)
        if source is None:
            raise FileNotFoundError(
                f"{directory} has no chat template, neither {TEMPLATE_FILE} nor an entry"
                f" chat_template in {_CONFIG_FILE}: put the template there with which the model is"
                " to be used"
            )
        return cls(source, named_tokens(directory))

    def write(self, directory: Path) -> None:
        """Writes the template for `from_directory`."""
        config = {**self._tokens, "chat_template": self._source}
        write_text(directory / _CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    def render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """Returns a conversation as text.

        Args:
          messages: the messages in order. Each has a `role` and the entries that the template
            reads.
          add_generation_prompt: whether to write the beginning of the model's reply.

        Raises:
          ValueError: the template refuses the conversation, fails, or takes too long.
        """
        refused = "the chat template does not take this conversation"
        with _as_value_error(refused), _time_limit(self._max_seconds):
            return self._template.render(
                messages=[dict(each) for each in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )

    def first_token(
        self, encode: Callable[[str], Sequence[int]], conversations: Sequence[Messages] = ()
    ) -> int | None:
        """Returns the token that all prompts begin with, mostly BOS; None if there is none.

        Args:
          encode: function from a text to its tokens.
          conversations: the conversations; by default examples of any conversation.

        Raises:
          ValueError: the template refuses a conversation.
        """
        first = set()
        for each in conversations or _ANY:
            try:
                text = self.render(each, add_generation_prompt=True)
            except ValueError:
                if conversations:
                    raise
                continue  # Some templates refuse a system message.
            first.add(next(iter(encode(text)), None))
        return first.pop() if len(first) == 1 else None


def has_template(directory: Path) -> bool:
    """Whether a directory has a chat template."""
    return _read_source(directory) is not None


def messages_of(value: Any) -> Messages:
    """Checks a conversation read from JSON.

    Args:
      value: a list of messages, or an object with such a list as `messages`.

    Raises:
      ValueError: the value is neither.
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


def _read_source(directory: Path) -> str | None:
    """Returns the template of a directory; if it has several by name, the one named `default`."""
    with contextlib.suppress(FileNotFoundError):
        return untrusted_json.read_text(directory / TEMPLATE_FILE)
    path = directory / _CONFIG_FILE
    found = read_if_there(path).get("chat_template")
    with untrusted_json.as_damaged(path):
        if isinstance(found, list):
            found = {each.get("name"): each.get("template") for each in found}.get("default")
    untrusted_json.check_types({"chat_template": found}, path, {"chat_template": str})
    return found


@contextlib.contextmanager
def _as_value_error(sentence: str) -> Iterator[None]:
    """Turns any error of a template, which is somebody else's program, into a ValueError."""
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{sentence}: {reason}") from error


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread after this processor time.

    Other threads have no limit, as Python delivers signals to the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> NoReturn:
        raise TimeoutError(f"it takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _environment() -> Any:
    """Returns Jinja's sandbox with the settings of `transformers`."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks the model's text and writes its contents unchanged."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            """Returns the block's contents."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Refuses the operators that could compute for hours in one step."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Computes a product or a power, unless it is too large."""
            size = 0
            if operator == "**" and isinstance(left, int) and isinstance(right, int):
                size = left.bit_length() * right
            elif hasattr(left, "__len__"):
                size = len(left) * right
            elif hasattr(right, "__len__"):
                size = len(right) * left
            if size > _MAX_SIZE:
                raise OverflowError(f"the result of {operator} is too large")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes characters for HTML.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return made
