"""Reads conversations, and turns them into prompts with the chat template of a run."""

from collections.abc import Iterable
from typing import Any

from t2tp.problems.codec import Codec
from t2tp.problems.problem import AnyPath, Problem
from t2tp.problems.vocab import chat_template
from t2tp.problems.vocab.chat_template import ChatTemplate, Conversation
from t2tp.trainer.inference.run_decoder import encode_prompt, naming_line
from t2tp.trainer.run_dir import huggingface_files
from t2tp.typed_files import parse_json

# In a file with this ending each line is a conversation, as JSON.
SUFFIX = ".jsonl"


def read_template(problem: Problem, data_dir: AnyPath, output_dir: AnyPath) -> ChatTemplate:
    """Reads a run's chat template: from its data, or else from the model it was converted from.

    Raises:
      FileNotFoundError: neither has a template.
      ValueError: the template is damaged.
    """
    directory = problem.directory(data_dir)
    if not chat_template.has_template(directory):
        directory = huggingface_files.directory_in(output_dir)
    return ChatTemplate.from_directory(directory)


def prompts(
    template: ChatTemplate, conversations: Iterable[Conversation], codec: Codec, path: str = ""
) -> list[list[int]]:
    """Returns the tokens of each conversation, followed by the beginning of a reply.

    Raises:
      ValueError: the template refuses a conversation; the message names its line.
    """
    found = []
    for number, each in enumerate(conversations, start=1):
        with naming_line(path, number):
            found.append(encode_prompt(codec, template.render(each, add_generation_prompt=True)))
    return found


def parse(lines: Iterable[str], path: str) -> list[Conversation]:
    """Reads each line's conversation: a JSON list of messages, or an object with such a list.

    Raises:
      ValueError: a line is not a conversation; the message names it.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        with naming_line(path, number):
            found.append(chat_template.conversation_of(parse_json(line, "the line", Any)))
    return found
