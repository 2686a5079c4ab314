"""Chat templates: programs that write a conversation as text.

A Hugging Face directory has its template in `chat_template.jinja`; older directories have it in
`tokenizer_config.json`. A template is a Jinja program that a stranger may have written. So it runs
in Jinja's sandbox, with the settings and functions that `transformers` provides, and in a process
with limited memory and time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2tp.atomic_file import write_text
from t2tp.optional_import import optional_import
from t2tp.problems.vocab.special_tokens import CONFIG_FILES, named_tokens, read_if_there
from t2tp.typed_files import file_inside, read_text

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = CONFIG_FILES[0]

# Earlier versions of Jinja let a template leave the sandbox.
_MIN_JINJA = (3, 1, 6)
# Max bytes of a template, and max processor time of a rendering, in seconds.
_MAX_BYTES, MAX_SECONDS = 1 << 20, 10.0

# A message has a `role`, such as "user" or "assistant", and mostly `content`, a text.
Messages = Sequence[Mapping[str, Any]]

# Entries of a record that a template may read, in addition to the messages, and their types.
EXTRA_VARIABLES = {"tools": list, "documents": list, "chat_template_kwargs": dict}


class Conversation(NamedTuple):
    """A conversation with further variables of the template, such as `tools`."""

    messages: Messages
    variables: Mapping[str, Any] = {}


# Written as text, these conversations have only the beginning in common: what the template writes
# before any content.
_USER = {"role": "user", "content": "a"}
_ANY = ([_USER], [{**_USER, "content": "b"}], [{"role": "system", "content": "c"}, _USER])

# The program of the process that renders a template.
_PROGRAM = Path(__file__).with_name("template_program.py")


class ChatTemplate:
    """The template of a model, and the process that renders it (`template_program.py`).

    The process is started again for a rendering if it has ended.

    Attributes:
      source: the template as text.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str], max_seconds: float = MAX_SECONDS
    ) -> None:
        """Starts the process, which compiles the template.

        `tokens` are special tokens by the names that templates use, such as `bos_token`. A
        rendering may take `max_seconds` of processor time.

        Raises:
          ModuleNotFoundError: Jinja is not installed or too old.
          ValueError: the source is not a template.
        """
        with optional_import("chat templates need the library jinja2: pip install -e '.[text]'"):
            import jinja2
        if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < _MIN_JINJA:
            raise ModuleNotFoundError(
                f"the sandbox of jinja2 {jinja2.__version__} is not safe: pip install -e '.[text]'"
            )
        self.source = source
        self._tokens, self._max_seconds = dict(tokens), max_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._start()

    @classmethod
    def from_directory(cls, directory: Path) -> ChatTemplate:
        """Reads the template in a Hugging Face directory.

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
        config = {**self._tokens, "chat_template": self.source}
        write_text(directory / _CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    def render(
        self, conversation: Messages | Conversation, *, add_generation_prompt: bool = False
    ) -> str:
        """Returns a conversation as text.

        Args:
          conversation: the messages in order. Each has a `role` and the other entries that the
            template reads.
          add_generation_prompt: whether to write the beginning of the model's reply.

        Raises:
          ValueError: the template refuses the conversation, fails, or takes too long or too much
            memory.
        """
        if not isinstance(conversation, Conversation):
            conversation = Conversation(conversation)
        variables: dict[str, Any] = {"tools": None, "documents": None, **self._tokens}
        variables |= conversation.variables
        variables["messages"] = [dict(each) for each in conversation.messages]
        variables["add_generation_prompt"] = add_generation_prompt
        with self._lock:
            # A forked process must not share the pipes.
            if self._process is None or self._owner != os.getpid():
                self._start()
            with _explained("the chat template does not take this conversation"):
                return self._ask(variables)

    def _start(self) -> None:
        """Starts the process and compiles the template; raises ValueError if it cannot."""
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(self._max_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._process, self._owner)
        with _explained("the chat template is not a template of Jinja"):
            self._ask(self.source)

    def _ask(self, request: object) -> str:
        """Sends a line to the process; returns the text that it answers."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self._process = None  # Until the answer has been read.
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            if process.wait() == -signal.SIGPROF:
                raise ValueError(f"it takes longer than {self._max_seconds:g} s")
            raise ValueError(f"its process ended with the exit code {process.returncode}")
        self._process = process
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        text: str = answer["text"]
        return text

    def first_token(
        self, encode: Callable[[str], Sequence[int]], conversations: Sequence[Conversation] = ()
    ) -> int | None:
        """Returns the first token of all prompts, usually BOS; None if prompts begin differently.

        `encode` returns the tokens of a text. The default conversations differ in their content.

        Raises:
          ValueError: the template refuses a conversation.
        """
        first = set()
        for each in conversations or map(Conversation, _ANY):
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


def conversation_of(value: Any) -> Conversation:
    """Checks a conversation read from JSON: a list of messages, or an object with `messages`.

    The entries `EXTRA_VARIABLES` of the object become variables of the template.

    Raises:
      ValueError: the value is neither, or has parts that are not text.
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
        parts = each["content"] if isinstance(each.get("content"), list) else []
        kinds = [part.get("type") if isinstance(part, dict) else part for part in parts]
        if other := [kind for kind in kinds if kind != "text"]:
            raise ValueError(f"a message has a part of type {other[0]!r}, and t2tp reads text")
    extra = value if isinstance(value, dict) else {}
    variables = {name: extra[name] for name in EXTRA_VARIABLES if extra.get(name) is not None}
    for name, entry in variables.items():
        if not isinstance(entry, EXTRA_VARIABLES[name]):
            kind = "a list" if EXTRA_VARIABLES[name] is list else "an object"
            raise ValueError(f"{name!r} is {json.dumps(entry)[:80]}, and must be {kind}")
    return Conversation(messages, variables | variables.pop("chat_template_kwargs", {}))


def _read_source(directory: Path) -> str | None:
    """Returns a directory's template; of several templates, the template named `default`."""
    with contextlib.suppress(FileNotFoundError):
        return read_text(file_inside(directory, TEMPLATE_FILE), _MAX_BYTES)
    schema = {"chat_template": list[dict[str, str]] | str}
    found = read_if_there(directory / _CONFIG_FILE, schema).get("chat_template")
    if isinstance(found, list):
        return {each.get("name"): each.get("template") for each in found}.get("default")
    return found


@contextlib.contextmanager
def _explained(sentence: str) -> Iterator[None]:
    """Puts a sentence before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{sentence}: {error}") from error


def _end(process: subprocess.Popen[str], owner: int) -> None:
    """Ends the process; does nothing in a fork of the process's owner."""
    if os.getpid() == owner:
        process.kill()
        process.communicate()
