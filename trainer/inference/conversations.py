"""Conversations as prompts: the chat template of a run makes their text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from os import PathLike

from t2tp.problems.codec import Codec
from t2tp.problems.vocab.chat_template import ChatTemplate, Messages, messages_of
from t2tp.trainer.run_dir import kept_files

# A file of this ending has a conversation in each line, as JSON.
SUFFIX = ".jsonl"

# Two beginnings of a conversation, which differ in nothing that a template could write first.
_ANY = ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])


class Conversations:
    """Makes prompts of conversations with a run's chat template."""

    def __init__(self, output_dir: str | PathLike[str]) -> None:
        """Reads the template.

        Raises:
          FileNotFoundError: the run has none.
          ValueError: it is no template.
        """
        self._template = ChatTemplate.from_directory(kept_files.directory_in(output_dir))

    def prompts(self, conversations: Iterable[Messages], codec: Codec) -> list[list[int]]:
        """Returns the tokens of each conversation and of the beginning of a reply.

        Raises:
          ValueError: the template does not take a conversation; its number is named.
        """
        found = []
        for number, each in enumerate(conversations, start=1):
            try:
                text = self._template.render(each, add_generation_prompt=True)
            except ValueError as error:
                raise ValueError(f"conversation {number}: {error}") from error
            found.append(codec.encode(text))
        return found

    def first_token(self, conversations: Sequence[Messages], codec: Codec) -> int | None:
        """Returns the token that all prompts begin with; None if there is no such token.

        A template writes what the model reads first. A model here always reads a first token, its
        hparam `bos_token_id`, before the prompt: so the two are one.

        Args:
          conversations: those that are known; none if they are still to be typed.
          codec: of the run.
        """
        prompts = self.prompts(conversations or _ANY, codec)
        first = {prompt[0] if prompt else None for prompt in prompts}
        return first.pop() if len(first) == 1 else None


def without_first(prompts: Iterable[Sequence[int]], token: int) -> list[list[int]]:
    """Returns prompts without their first token, where it is the given one."""
    return [list(each[1:] if each and each[0] == token else each) for each in prompts]


def parse(lines: Iterable[str], path: str) -> list[Messages]:
    """Reads a conversation from each line.

    Args:
      lines: of the file; each a list of messages as JSON, or an object with such a list.
      path: of the file, for errors.

    Raises:
      ValueError: a line is no conversation; it is named.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(messages_of(json.loads(line)))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return found
