"""`t2tp_decoder`: decodes files, splits, images or typed lines, and scores targets."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from absl import flags as absl_flags
from absl import logging

from t2tp import checkpoint
from t2tp.checkpoint.reading import TRAINABLE
from t2tp.decoding import DecodeOptions
from t2tp.decoding.options import should_compile
from t2tp.object_store.mirror import mirror_of
from t2tp.problems.generated_images import GeneratedImages
from t2tp.problems.vocab.chat_template import ChatTemplate, Conversation
from t2tp.processes.cluster import Cluster
from t2tp.trainer.cli.spec_from_flags import spec_of_run
from t2tp.trainer.cli.train import building, joined
from t2tp.trainer.errors import UsageError, as_usage_error
from t2tp.trainer.hooks.summaries import SummaryWriter
from t2tp.trainer.inference import conversations, files
from t2tp.trainer.inference.generation_config import default_options
from t2tp.trainer.inference.run_decoder import (
    Decoded,
    Result,
    RunDecoder,
    check_writes,
    codec_for,
    encode_prompt,
)
from t2tp.trainer.local_paths import read_lines
from t2tp.trainer.run_config import RunConfig
from t2tp.trainer.run_dir.find_checkpoint import checkpoint_directory
from t2tp.trainer.run_spec import RunSpec

_SOURCES = ("decode_from_file", "decode_interactive", "split", "score_file")


def run(flags: absl_flags.FlagValues) -> None:
    """Decodes or scores the source that the flags name."""
    # Errors in flags and files are reported before the processes meet and the model is built, which
    # takes minutes.
    with as_usage_error(ValueError, LookupError, OSError):
        _check(flags)
        spec = spec_of_run(flags, needs_data=bool(flags.split or flags.generate_data))
        options = DecodeOptions.parse(flags.decode_hparams, **default_options(spec))
        check_writes(spec.model)
        path = flags.decode_from_file or flags.score_file
        lines = read_lines(path) if path else []
        if path and not lines:
            raise UsageError(f"{path} is empty: there is nothing to decode or to score")
        chat = _chat(flags, spec, lines)
        # Otherwise hours of decoding would end with an error of the file system.
        if flags.decode_to_file or flags.decode_from_file:
            files.check_can_be_written(flags.decode_to_file or flags.decode_from_file)
        if spec.config.xla is None and _should_compile(flags, spec, options, len(lines)):
            spec = replace(spec, config=replace(spec.config, xla=True))
            logging.info("compiling decoding with XLA (--noxla disables it)")
    with joined(flags, spec) as cluster:
        _Decoding(flags, spec, options, lines, cluster, chat).run()


def _check(flags: absl_flags.FlagValues) -> None:
    """Raises UsageError if flags contradict each other or a source is missing."""
    given = [name for name in _SOURCES if flags[name].value]
    if len(given) != 1:
        options = " and ".join(f"--{name}" for name in given) or "none of them"
        raise UsageError(
            f"give one of {', '.join(f'--{name}' for name in _SOURCES)}: {options} is given"
        )
    if flags.split and flags.decode_to_file == files.STDOUT:
        raise UsageError("--split writes several files: --decode_to_file=- is for one")
    # The mirror uploads only files that flags name. Files whose names are derived from a source in
    # a bucket would stay in the local mirror, where nobody looks.
    if flags.split or not flags.decode_to_file:
        option = "decode_to_file" if flags.split else "decode_from_file"
        named = str(flags[option].value or files.STDOUT)
        mirror = mirror_of(named)
        if mirror and mirror.path == Path(named).absolute():
            advice = "omit it or name a local path" if flags.split else "give --decode_to_file"
            raise UsageError(
                f"--{option}={mirror.store.address}: the files that would be written next to it"
                f" are not uploaded; {advice}"
            )


@dataclass(frozen=True)
class _Chat:
    """Conversations to reply to.

    Attributes:
      template: the chat template, which formats conversations as prompts.
      conversations: the conversations of the file; empty if the user types messages.
    """

    template: ChatTemplate
    conversations: list[Conversation]


def _chat(flags: absl_flags.FlagValues, spec: RunSpec, lines: list[str]) -> _Chat | None:
    """Returns the conversations to reply to; None if the source is plain text."""
    path = flags.decode_from_file or ""
    if not (flags.chat or path.endswith(conversations.SUFFIX)):
        return None
    if flags.decode_prefix_file or spec.problem.reads_inputs:
        raise UsageError("conversations need a language model, and no --decode_prefix_file")
    template = conversations.read_template(spec.problem, spec.data_dir, spec.config.output_dir)
    return _Chat(template, conversations.parse(lines, path))


def _should_compile(
    flags: absl_flags.FlagValues, spec: RunSpec, options: DecodeOptions, num_lines: int
) -> bool:
    """Decides whether to compile decoding with XLA, if no flag decides it."""
    if flags.split:
        num_prompts = math.inf if options.num_samples < 0 else options.num_samples
    else:
        # Somebody who types waits for the compilation at the first line. Scoring decodes nothing.
        num_prompts = num_lines if flags.decode_from_file else 0
    return should_compile(spec.layout, num_prompts, options.batch_size, _num_weights(spec.config))


def _num_weights(config: RunConfig) -> int:
    """Counts the trainable parameters in the run's latest checkpoint; 0 if there is none.

    If the checkpoint does not record which variables are trainable, counts all variables.
    """
    saved = checkpoint.latest(checkpoint_directory(config.output_dir))
    if saved is None:
        return 0
    shapes = saved.shapes()
    return sum(math.prod(shapes[name]) for name in saved.metadata.get(TRAINABLE, shapes))


class _Decoding:
    """One invocation of the program."""

    def __init__(
        self,
        flags: absl_flags.FlagValues,
        spec: RunSpec,
        options: DecodeOptions,
        lines: list[str],
        cluster: Cluster,
        chat: _Chat | None,
    ) -> None:
        self._flags = flags
        self._chat = chat
        self._problem = spec.problem
        self._is_main_process = cluster.is_main_process
        # A batch would wait for more typed lines.
        if flags.decode_interactive:
            options = replace(options, batch_size=1)
        self._options = options
        self._lines = lines
        with as_usage_error(ValueError, OSError):
            # With another vocabulary, the same ids would be other text, without any error.
            spec.check_same_data()
            if chat is not None:
                spec = self._with_first_token(spec, chat)
        with building(spec.model):
            self._estimator = spec.make_estimator()
            self._decoder = RunDecoder(spec, self._estimator, options)

    def _with_first_token(self, spec: RunSpec, chat: _Chat) -> RunSpec:
        """Returns the spec with the first token of the chat template as the model's BOS."""
        # The template writes its first token itself, and the model reads `bos_token_id` before a
        # prompt: with both, prompts would begin with two, unlike in training. `_replies` removes
        # one.
        codec = codec_for(spec.problem, spec.data_dir)
        first = chat.template.first_token(partial(encode_prompt, codec), chat.conversations)
        if first is not None:
            spec = spec.with_hparams({"bos_token_id": first})
        self._codec, self._first_token = codec, spec.hparams.bos_token_id
        return spec

    def _replies(
        self, chat: _Chat, asked: Sequence[Conversation], path: str = ""
    ) -> Iterator[Result]:
        prompts = conversations.prompts(chat.template, asked, self._codec, path)
        prompts = [
            tokens[1:] if tokens[:1] == [self._first_token] else tokens for tokens in prompts
        ]
        yield from self._decoder.replies(prompts, path)

    def run(self) -> None:
        """Decodes or scores the source that the flags name."""
        flags = self._flags
        with as_usage_error(ValueError, LookupError, OSError):
            if flags.score_file:
                self._score()
            elif flags.decode_interactive:
                self._interactive()
            elif flags.decode_from_file:
                self._file()
            elif self._problem.generated_images:
                self._images(self._problem.generated_images)
            else:
                self._split()

    def _file(self) -> None:
        """Decodes a file into a file."""
        flags, lines, source = self._flags, self._lines, self._flags.decode_from_file
        references = self._aligned(flags.decode_reference)
        # Batches have lines of similar lengths, so results come in another order than lines.
        decoded_lines: list[list[Decoded]] = [[] for _ in lines]
        # One line that is too long must not cost the user the other lines: it is reported at the
        # end.
        refused: dict[int, ValueError] = {}
        results = (
            self._decoder.texts(lines, self._aligned(flags.decode_prefix_file), source)
            if self._chat is None
            else self._replies(self._chat, self._chat.conversations, source)
        )
        for count, (number, decoded) in enumerate(results, start=1):
            if isinstance(decoded, ValueError):
                refused[number] = decoded
            else:
                decoded_lines[number] = decoded
            if count % 100 == 0:
                logging.info("decoded %d of %d", count, len(lines))
        # If no line was decoded, the output of an earlier call stays.
        if self._is_main_process and len(refused) < len(lines):
            path = flags.decode_to_file or f"{source}.{self._name}.decodes"
            files.write_lines(path, [files.line_of(d, self._options) for d in decoded_lines])
            logging.info("%d lines in %s", len(lines), path)
            if references is not None:
                self._report("file", [d[0].text if d else "" for d in decoded_lines], references)
        if refused:
            more = f" (so are {len(refused) - 1} more lines)" if len(refused) > 1 else ""
            rest = "; the other lines are decoded" if len(refused) < len(lines) else ""
            raise UsageError(f"{refused[min(refused)]}{more}{rest}")

    def _aligned(self, path: str | None) -> list[str] | None:
        """Reads a file whose lines match the lines of the source file; None without a path."""
        if not path:
            return None
        lines = read_lines(path)
        # After one missing line, each line would get the reference or prefix of another.
        if len(lines) != len(self._lines):
            raise UsageError(
                f"{path} has {len(lines)} lines, and {self._flags.decode_from_file} has"
                f" {len(self._lines)}: the numbers must be equal"
            )
        return lines

    def _interactive(self) -> None:
        """Decodes lines from stdin to stdout, until the end of input.

        With --chat each line is the next message of a conversation. An empty line begins another
        conversation.
        """
        # In a file or pipe, `> ` would become a part of the output.
        is_typed = sys.stdin.isatty() and sys.stdout.isatty()
        history: list[dict[str, str]] = []
        while True:
            if is_typed:
                print("> ", end="", flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            line = line.rstrip("\r\n")  # Spaces at the end belong to a prompt.
            if self._chat is not None and not line:
                history = []  # Another conversation begins.
                continue
            try:
                messages = [*history, {"role": "user", "content": line}]
                [(_, decoded)] = (
                    self._decoder.texts([line])
                    if self._chat is None
                    else self._replies(self._chat, [Conversation(messages)])
                )
                if isinstance(decoded, ValueError):
                    raise decoded
                # A refused message in the history would make the next one be refused, too.
                if self._chat is not None:
                    history = [*messages, {"role": "assistant", "content": decoded[0].text}]
            except ValueError as error:
                print(f"t2tp_decoder: {error}", file=sys.stderr)
                continue
            for each in decoded:
                fields = [each.text]
                if self._options.write_beam_scores:
                    fields.append(f"{each.score:.4f}")
                print("\t".join(fields), flush=True)

    def _split(self) -> None:
        """Decodes a split of the problem into three files: inputs, targets and outputs."""
        rows = self._decoder.split(self._flags.split, self._options.num_samples)
        # All processes decode together, as their devices run one program.
        if not self._is_main_process:
            return
        for path in files.write_rows(self._base, rows, self._options):
            logging.info("%d lines in %s", len(rows), path)
        outputs, targets = [row.outputs[0].text for row in rows], [row.targets for row in rows]
        self._report(self._flags.split, outputs, targets)

    def _images(self, images: GeneratedImages) -> None:
        """Generates images into PNG files."""
        count = self._options.num_samples
        # The default, all examples of a split, means nothing for images.
        if count < 1:
            raise UsageError(
                f"{self._problem.name} generates images: give their number, as in"
                " --decode_hparams=num_samples=16,temperature=1"
            )
        pixels = self._decoder.images(count)
        if self._is_main_process:
            paths = files.write_images(self._base, images.brightness(pixels))
            logging.info("%d images, %s to %s", count, paths[0], paths[-1])

    def _score(self) -> None:
        """Prints or writes the log-probability of each line of a file."""
        scores = [
            f"{each:.6f}" for each in self._decoder.scores(self._lines, self._flags.score_file)
        ]
        if not self._is_main_process:
            return
        if self._flags.decode_to_file:
            files.write_lines(self._flags.decode_to_file, scores)
            logging.info("%d lines in %s", len(scores), self._flags.decode_to_file)
        else:
            print("\n".join(scores))

    def _report(self, what: str, outputs: Sequence[str], references: Sequence[str]) -> None:
        """Prints the metrics of decoded texts and writes them for TensorBoard."""
        figures = self._problem.decode_metrics(outputs, references)
        print("  ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))
        # TensorBoard shows each directory as a run of its own.
        directory = os.path.join(self._estimator.config.output_dir, f"decode_{what}")
        summaries = SummaryWriter(directory)
        summaries.write(self._estimator.steps_done, figures)
        summaries.close()

    @property
    def _name(self) -> str:
        """The common part of the names of decoded files: problem, method and step."""
        # Another checkpoint or method must not overwrite these files.
        return f"{self._problem.name}.{self._options.label}.step{self._estimator.steps_done}"

    @property
    def _base(self) -> Path:
        """The beginning of the paths of a split's files, to which extensions are appended."""
        if self._flags.decode_to_file:
            return Path(self._flags.decode_to_file)
        name = f"{self._flags.split}.{self._name}"
        return Path(self._estimator.config.output_dir, "decodes", name)
